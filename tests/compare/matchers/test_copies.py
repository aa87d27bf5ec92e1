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


def test_what_a_module_is_given_joins_what_the_one_inside_it_is_given():
    around = replace(card("trunk", "in[0]", 0), order=1)
    theirs = [card("", "in[0]", 0), around, card("trunk.block", "in[0]", 2, 7.0)]

    found = match([card("", "in[0]", 0), card("block", "in[0]", 1, 7.0)], theirs)

    assert found.unmatched_candidate == ()
    assert ["", "trunk"] in [[spot.site for spot in pair.candidate] for pair in found.pairs]


def test_copies_join_a_pair_whose_rows_are_merged():
    flat = [replace(c, shape=(16, 16)) if c.spot.site == "proj" else c for c in OURS]

    found = match(flat, THEIRS)

    assert found.unmatched_candidate == ()
    pair = next(pair for pair in found.pairs if len(pair.candidate) == 2)
    assert (pair.baseline[0].site, pair.layout.kind) == ("proj", "copies")


def test_a_linear_that_holds_its_activation_gives_what_the_activation_gives():
    def named(site, port, order, value, module):
        return replace(card(site, port, order, value), module=module)

    ours = [named("fc", "in[0]", 0, 1.0, "Linear"), named("fc", "out[0]", 1, 3.0, "Linear"),
            named("act", "in[0]", 2, 3.0, "GELU"), named("act", "out[0]", 3, 5.0, "GELU"),
            named("proj", "in[0]", 4, 5.0, "Linear"), named("proj", "out[0]", 5, 7.0, "Linear")]  # fmt: skip
    theirs = [named("ffn.fc", "in[0]", 0, 1.0, "Dense"), named("ffn.fc.activation", "in[0]", 1, 3.0, "GELU"),
              named("ffn.fc.activation", "out[0]", 2, 5.0, "GELU"), named("ffn.fc", "out[0]", 3, 5.0, "Dense"),
              named("ffn.proj", "in[0]", 4, 5.0, "Dense"), named("ffn.proj", "out[0]", 5, 7.0, "Dense")]  # fmt: skip

    found = match(ours, theirs)

    assert (found.unmatched_baseline, found.unmatched_candidate) == ((), ())
    partners = {spot: {s.site for s in pair.candidate} for pair in found.pairs for spot in pair.baseline}
    assert partners[ours[1].spot] == {"ffn.fc.activation"}
    assert "ffn.fc" in partners[ours[3].spot] | partners[ours[4].spot]


def test_tuples_that_go_by_other_names_are_paired_member_by_member():
    ours = [card("block", f"in[position_embeddings][{i}]", i, 2.0 + i) for i in range(2)]
    theirs = [replace(card("block", f"in[1][{i}]", i, 2.0 + i), shape=(2, 8, 1, 16)) for i in range(2)]

    pairs = match(ours, theirs).pairs

    assert {(p.baseline[0].port[-3:], p.candidate[0].port[-3:]) for p in pairs} == {("[0]", "[0]"), ("[1]", "[1]")}


def test_two_tuples_of_the_same_shapes_are_not_guessed():
    ours = [card("block", f"in[{name}][{i}]", i, 2.0 + i) for name in ("a", "b") for i in range(2)]
    theirs = [card("block", f"in[1][{i}]", i, 7.0 + i) for i in range(2)]

    assert match(ours, theirs).pairs == ()
