"""The map that a person wrote: it wins, round-trips, and says clearly what it got wrong."""

from __future__ import annotations

import random

import pytest
from invented import cards, network

from hypocenter.compare.comparison import SiteCard, Spot
from hypocenter.compare.matching import match
from hypocenter.compare.pairing.manual_map import draft_map, parse_map, read_map
from hypocenter.errors import ConfigError, UnknownNameError


def spots(site: str, *shapes: tuple[int, ...]) -> list[SiteCard]:
    return [
        SiteCard(spot=Spot(phase="forward", site=site, port=f"out[{i}]"), order=i, dtype="float32", shape=shape)
        for i, shape in enumerate(shapes)
    ]


def test_the_map_wins_over_equal_names():
    ours, theirs = [*spots("a", (2, 3)), *spots("b", (2, 3))], [*spots("a", (2, 3)), *spots("b", (2, 3))]
    crossed = parse_map('[[pair]]\nbaseline = "a"\ncandidate = "b"\n[[pair]]\nbaseline = "b"\ncandidate = "a"\n')

    matching = match(ours, theirs, crossed)

    assert {(p.baseline[0].site, p.candidate[0].site, p.by) for p in matching.pairs} == {
        ("a", "b", "manual"),
        ("b", "a", "manual"),
    }


def test_ports_and_layout_are_taken_from_the_map():
    text = """
    [[pair]]
    baseline = "a"
    candidate = "b"
    ports = { "out[0]" = "out[1]" }
    layout = "swapped"
    """

    (pair,) = match(spots("a", (4, 4, 8)), spots("b", (9,), (4, 4, 8)), parse_map(text)).pairs

    assert (pair.baseline[0].port, pair.candidate[0].port) == ("out[0]", "out[1]")
    assert (pair.layout.kind, pair.layout.swapped) == ("swapped", True)


def test_parts_of_a_fused_module_are_a_list():
    text = '[[pair]]\nbaseline = ["q", "k"]\ncandidate = "qk"\nlayout = "interleaved"\ngroups = 2\n'

    (pair,) = match([*spots("q", (2, 5, 8)), *spots("k", (2, 5, 4))], spots("qk", (5, 2, 12)), parse_map(text)).pairs

    layout = pair.layout
    assert [spot.site for spot in pair.baseline] == ["q", "k"]
    assert (layout.kind, layout.dim, layout.sizes, layout.groups, layout.swapped) == ("interleaved", 2, (8, 4), 2, True)


def test_a_map_is_drafted_with_what_was_not_paired_as_a_comment():
    before = network(2, random.Random(0))
    ours, theirs = cards(before), cards([m for m in before if m.path != "stack.1.mix.q"])

    text = draft_map(match(ours, theirs))

    assert '#   "stack.1.mix.q"' in text.splitlines()
    assert {pair.by for pair in match(ours, theirs, parse_map(text)).pairs} == {"manual"}


def test_an_unknown_site_is_one_clear_error_with_the_nearest_name():
    text = '[[pair]]\nbaseline = "layers.0.atn"\ncandidate = "b"\n[[pair]]\nbaseline = "zz"\ncandidate = "b"\n'
    known = [*spots("layers.0.attn", (2, 3)), *spots("head", (2, 3))]

    with pytest.raises(UnknownNameError) as raised:
        match(known, spots("b", (2, 3)), parse_map(text, "map.toml"))

    assert str(raised.value) == (
        "error[unknown-name]: the baseline has no site 'layers.0.atn' (and 1 more of the map)\n"
        "  --> map.toml\n"
        "   = fix: did you mean 'layers.0.attn'?"
    )


def test_a_spot_that_is_paired_twice_is_refused():
    text = '[[pair]]\nbaseline = "a"\ncandidate = "b"\n[[pair]]\nbaseline = "a"\ncandidate = "b"\n'

    with pytest.raises(ConfigError, match="twice"):
        match(spots("a", (2, 3)), spots("b", (2, 3)), parse_map(text))


@pytest.mark.parametrize(
    "text",
    [
        "[[pair]", "pair = 3", '[[pair]]\nbaseline = "a"', '[[pair]]\nbaseline = "a"\ncandidate = "b"\nlayuot = "x"',
        '[[pair]]\nbaseline = "a"\ncandidate = "b"\nlayout = "sideways"',
        '[[pair]]\nbaseline = ["a", "b"]\ncandidate = ["c", "d"]', '[[pair]]\nbaseline = []\ncandidate = "c"',
    ],
)  # fmt: skip
def test_what_is_no_map_is_a_clear_error(text, tmp_path):
    (tmp_path / "map.toml").write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_map(tmp_path / "map.toml")

    assert "map.toml" in str(raised.value)
    assert raised.value.fix


def test_a_map_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_map(tmp_path / "none.toml")
