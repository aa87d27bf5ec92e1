"""Issue 5, acceptance 7: never two with one, symmetric, and right after a refactoring of up to 20 % of the sites."""

from __future__ import annotations

import cProfile
import pstats
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import Module, cards, network, norms, one_to_one, renamed, truths, word

from hypocenter.compare.comparison import Matching, SiteCard, Spot
from hypocenter.compare.matching import match

CHANGES = ("rename", "delete", "insert", "shuffle")


@st.composite
def refactorings(draw):
    """A network, and what is left of it when up to 20 % of its modules were changed."""
    numbers = random.Random(draw(st.integers(0, 2**32)))
    before = network(draw(st.integers(1, 6)), numbers)
    changes = draw(st.sets(st.sampled_from(CHANGES), min_size=1))
    share = draw(st.floats(0.0, 0.2)) / len(changes)
    return before, changed(before, changes, share, numbers)


def changed(before: list[Module], changes: set[str], share: float, numbers: random.Random) -> list[Module]:
    after, n = list(before), int(share * len(before))
    if "rename" in changes:
        after = renamed(after, set(numbers.sample(range(len(before)), n)), numbers)
    if "delete" in changes:
        for module in numbers.sample(after, n):
            after.remove(module)
    if "insert" in changes:
        for i in range(n):
            twin = numbers.choice(before)
            path = f"{twin.path.rpartition('.')[0]}.{word(numbers)}".lstrip(".")
            other = Module(
                truth=10_000 + i, path=path, kind=twin.kind, weight=twin.weight, width=twin.width, norms=norms(numbers)
            )
            after.insert(numbers.randrange(len(after) + 1), other)
    if "shuffle" in changes and n > 1:
        places = sorted(numbers.sample(range(len(after)), n))
        for place, module in zip(places, numbers.sample([after[i] for i in places], n), strict=True):
            after[place] = module
    return after


@given(refactorings())
def test_never_two_with_one_and_never_the_wrong_one(refactoring):
    before, after = refactoring
    ours, theirs = truths(before), truths(after)

    matching = match(cards(before), cards(after))

    assert one_to_one(matching.pairs)
    for pair in matching.pairs:
        assert ours[pair.baseline[0]] == theirs[pair.candidate[0]], pair
    assert accounted_for(matching, len(ours), len(theirs))


@given(refactorings())
def test_what_kept_its_name_is_paired(refactoring):
    before, after = refactoring

    matching = match(cards(before), cards(after))

    kept = {spot for spot, what in truths(before).items() if truths(after).get(spot) == what}
    assert kept <= {spot for pair in matching.pairs for spot in pair.baseline}


@given(refactorings())
def test_the_other_way_round_is_the_mirror_image(refactoring):
    before, after = refactoring

    there, back = match(cards(before), cards(after)), match(cards(after), cards(before))

    assert {(p.baseline, p.candidate, p.layout, p.by, p.certainty) for p in there.pairs} == {
        (p.candidate, p.baseline, p.layout, p.by, p.certainty) for p in back.pairs
    }


@given(st.integers(1, 8), st.integers(0, 2**32))
def test_renaming_a_fifth_of_the_modules_loses_nothing(n_layers, seed):
    numbers = random.Random(seed)
    before = network(n_layers, numbers)
    after = renamed(before, set(numbers.sample(range(len(before)), len(before) // 5)), numbers)
    ours, theirs = truths(before), truths(after)

    matching = match(cards(before), cards(after))

    assert all(ours[pair.baseline[0]] == theirs[pair.candidate[0]] for pair in matching.pairs)
    assert len(matching.pairs) == len(ours)


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_renaming_everything_is_seen_through_by_structure_alone(n_layers, seed):
    """No name is the same and no value agrees: other weights, everything renamed."""
    numbers = random.Random(seed)
    before = network(n_layers, numbers)
    after = [
        Module(truth=m.truth, path=m.path, kind=m.kind, weight=m.weight, width=m.width, norms=norms(numbers))
        for m in renamed(before, {m.truth for m in before}, numbers)
    ]
    ours, theirs = truths(before), truths(after)

    matching = match(cards(before), cards(after))

    assert all(ours[pair.baseline[0]] == theirs[pair.candidate[0]] for pair in matching.pairs)
    assert len(matching.pairs) == len(ours)
    assert all(pair.by == "structure" and pair.certainty < 1 for pair in matching.pairs)


@given(st.integers(3, 6), st.integers(0, 2**32))
def test_one_of_several_like_layers_that_is_gone_is_not_guessed(n_layers, seed):
    """Renamed throughout, a layer fewer, and no value agrees: nothing says which layer is gone."""
    numbers = random.Random(seed)
    before = network(n_layers, numbers)
    fewer = [m for m in before if not m.path.startswith("stack.1")]
    after = [
        Module(truth=m.truth, path=m.path, kind=m.kind, weight=m.weight, width=m.width, norms=norms(numbers))
        for m in renamed(fewer, {m.truth for m in fewer}, numbers)
    ]

    matching = match(cards(before), cards(after))

    paired = {pair.baseline[0].site.removesuffix(".weight") for pair in matching.pairs}
    assert paired <= {"embed", "final", "readout"}


garbage = st.builds(
    SiteCard,
    spot=st.builds(
        Spot,
        phase=st.sampled_from(["forward", "backward", "param", "grad", "optimizer", "data", "loss", "comm", "scaler"]),
        site=st.text(alphabet="ab.0 \u00e4{}[]", max_size=8),
        port=st.sampled_from(["in[0]", "in[", "]", "", "value", "out[x][1]", "grad", "grad_in[hidden_states]"]),
        call=st.integers(0, 1),
    ),
    order=st.integers(0, 50),
    module=st.sampled_from(["", "Linear", "Conv1D", "Identity", "\x00"]),
    dtype=st.sampled_from(["", "float32", "int64", "bool", "nonsense"]),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    names=st.lists(st.text(alphabet="ab.", max_size=3), max_size=2).map(tuple),
    n=st.integers(0, 100),
    sumsq=st.floats() | st.just(1.0),
    absmax=st.floats() | st.just(1.0),
    hist=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    sketch=st.none() | st.lists(st.floats(), min_size=2, max_size=2).map(tuple),
)


@given(st.lists(garbage, max_size=12), st.lists(garbage, max_size=12))
def test_garbage_is_paired_one_to_one_or_not_at_all(ours, theirs):
    matching = match(ours, theirs)

    assert one_to_one(matching.pairs)
    assert not [note for note in matching.notes if "failed" in note]


@pytest.mark.night
def test_a_thousand_renamed_modules_are_twice_the_work_of_half_as_many():
    def work(n_layers):
        numbers, profile = random.Random(1), cProfile.Profile()
        before = network(n_layers, numbers)
        after = renamed(before, {module.truth for module in before}, numbers)
        matching = profile.runcall(match, cards(before), cards(after))
        assert len(matching.pairs) == len(truths(before)) > 40 * n_layers
        return pstats.Stats(profile).total_calls

    assert work(100) < 2.5 * work(50)  # calls of functions


def accounted_for(matching: Matching, n_ours: int, n_theirs: int) -> bool:
    paired = [sum(len(getattr(pair, side)) for pair in matching.pairs) for side in ("baseline", "candidate")]
    return [paired[0] + len(matching.unmatched_baseline), paired[1] + len(matching.unmatched_candidate)] == [
        n_ours,
        n_theirs,
    ]
