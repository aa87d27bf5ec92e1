"""A spot that nothing pairs joins the pair of the same tensor of its own run."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.compare.comparison import SiteCard, Spot
from hypocenter.compare.matching import match
from hypocenter.compare.pairing.manual_map import draft_map, parse_map


def card(site, port, order, value=1.0, phase="forward"):
    return SiteCard(
        spot=Spot(phase=phase, site=site, port=port), order=order, module="Linear", dtype="float32", shape=(2, 8, 16),
        n=256, sumsq=100.0 * value, absmax=2.0 * value, sketch=tuple(value * (i + 1.0) for i in range(16)),
    )  # fmt: skip


OURS = [card("block", "in[0]", 0), card("proj", "in[0]", 1, 3.0), card("proj", "out[0]", 2, 5.0)]
THEIRS = [card("block", "in[0]", 0), card("core", "out[0]", 1, 3.0), *(replace(c, order=c.order + 1) for c in OURS[1:])]


def test_what_a_module_gives_joins_what_the_next_one_takes():
    found = match(OURS, THEIRS)

    assert found.unmatched_candidate == ()
    pair = next(pair for pair in found.pairs if pair.baseline[0].site == "proj" and pair.baseline[0].port == "in[0]")
    assert [spot.site for spot in pair.candidate] == ["proj", "core"]
    assert pair.layout.kind == "copies"
    assert "core out[0] is the same tensor" in pair.why


def test_another_tensor_does_not_join():
    other = [replace(c, sumsq=c.sumsq * (1 + 1e-9)) if c.spot.site == "core" else c for c in THEIRS]

    assert [card.spot.site for card in match(OURS, other).unmatched_candidate] == ["core"]


def test_what_comes_after_does_not_join_what_was_taken_before():
    """A residual branch that gives zeros: the block's output equals its input, and is another tensor."""
    later = [card("late", "out[0]", 9) if c.spot.site == "core" else c for c in THEIRS]

    assert [card.spot.site for card in match(OURS, later).unmatched_candidate] == ["late"]


def test_a_drafted_map_leaves_them_to_be_found_again():
    found = match(OURS, THEIRS)

    again = match(OURS, THEIRS, parse_map(draft_map(found)))

    assert {(p.baseline, p.candidate, p.layout) for p in again.pairs} == {
        (p.baseline, p.candidate, p.layout) for p in found.pairs
    }


def test_tuples_that_go_by_other_names_are_paired_member_by_member():
    ours = [card("block", f"in[position_embeddings][{i}]", i, 2.0 + i) for i in range(2)]
    theirs = [replace(card("block", f"in[1][{i}]", i, 2.0 + i), shape=(2, 8, 1, 16)) for i in range(2)]

    pairs = match(ours, theirs).pairs

    assert {(p.baseline[0].port[-3:], p.candidate[0].port[-3:]) for p in pairs} == {("[0]", "[0]"), ("[1]", "[1]")}


def test_two_tuples_of_the_same_shapes_are_not_guessed():
    ours = [card("block", f"in[{name}][{i}]", i, 2.0 + i) for name in ("a", "b") for i in range(2)]
    theirs = [card("block", f"in[1][{i}]", i, 7.0 + i) for i in range(2)]

    assert match(ours, theirs).pairs == ()
