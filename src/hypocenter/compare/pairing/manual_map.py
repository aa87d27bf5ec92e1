"""The map file: pairs that a person wrote, or that `diff --write-map` drafted.

[[pair]]
baseline = "model.layers.0.self_attn.q_proj"     # a module or a parameter; a list: parts of a fused one, in order
candidate = "layers.0.attention.wq"
ports = { "in[hidden_states]" = "in[0]" }        # if not all ports of the same name: exactly these
layout = "interleaved"                           # if shapes do not tell: see comparison.Layout
groups = 8
swapped = true
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from hypocenter.compare.comparison import Matching, Pair, Side, Spot
from hypocenter.compare.pairing.copies import without_copies
from hypocenter.errors import ConfigError
from hypocenter.toml import tomllib

LayoutName = Literal[
    "", "identity", "transposed", "padded", "concatenated", "interleaved", "swapped", "reshaped", "copies"
]
_Key = tuple[str, str, int]  # phase, port, call


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualPair:
    """One `[[pair]]`: sites of the baseline and of the candidate that are the same; several are parts of a fused one.

    `ports`: baseline port -> candidate port; empty: all ports of the same name. Layout fields as in comparison.Layout;
    an empty `layout` is read off the shapes.
    """

    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    ports: dict[str, str] = field(default_factory=dict[str, str])
    layout: LayoutName = ""
    groups: int = 1
    swapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualMap:
    """A whole map file."""

    pairs: tuple[ManualPair, ...] = ()
    path: str = ""  # where it was read from


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    baseline: str | list[str]
    candidate: str | list[str]
    ports: dict[str, str] = {}
    layout: LayoutName = ""
    groups: int = 1
    swapped: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    pair: list[_Entry] = []


def read_map(path: Path | str) -> ManualMap:
    """Read a map file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or has fields that a map does not have.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("map cannot be read", where=str(path), why=str(error), fix="give a TOML file") from error
    return parse_map(text, str(path))


def parse_map(text: str, path: str = "") -> ManualMap:
    """Read a map from its text. Raises ConfigError, as `read_map`."""
    try:
        entries = msgspec.convert(tomllib.loads(text), type=_File).pair
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        fix = 'write [[pair]] with baseline = "site" and candidate = "site"; `diff --write-map` drafts one'
        raise ConfigError("map cannot be understood", where=path, why=str(error), fix=fix) from error
    pairs = tuple(_manual_pair(entry, path) for entry in entries)
    return ManualMap(pairs=pairs, path=path)


def _manual_pair(entry: _Entry, path: str) -> ManualPair:
    sides = [tuple([side] if isinstance(side, str) else side) for side in (entry.baseline, entry.candidate)]
    if not all(sides) or min(map(len, sides)) > 1:
        what = f"several sites against several: {', '.join(sides[0])} and {', '.join(sides[1])}"
        raise ConfigError(what, where=path, fix="pair one site with one, or one with the list of its parts")
    return ManualPair(
        baseline=sides[0], candidate=sides[1], ports=entry.ports, layout=entry.layout,
        groups=entry.groups, swapped=entry.swapped,
    )  # fmt: skip


def draft_map(matching: Matching) -> str:
    """Write the text of a map file that says what was found, to be read back or corrected by hand."""
    entries: dict[str, list[Pair]] = {}
    for pair in map(without_copies, matching.pairs):
        entries.setdefault(_sites(pair), []).append(pair)
    lines = ["# sites of the baseline and the candidate that are the same; what stands here always wins"]
    keys = _keys(matching, "baseline"), _keys(matching, "candidate")
    for sites, pairs in entries.items():
        shared = keys[0][pairs[0].baseline[0].site] & keys[1][pairs[0].candidate[0].site]
        lines += _parts(sites, pairs, shared)
    for side, cards in (("baseline", matching.unmatched_baseline), ("candidate", matching.unmatched_candidate)):
        left = dict.fromkeys(card.spot.site for card in cards)
        lines += ["", f"# of the {side}, not or not wholly paired:"] if left else []
        lines += [f"#   {json.dumps(site, ensure_ascii=False)}" for site in left]
    return "\n".join(lines) + "\n"


def _key(spot: Spot) -> _Key:
    return spot.phase, spot.port, spot.call


def _keys(matching: Matching, side: Side) -> dict[str, set[_Key]]:
    """Return for each site of one run its phases and ports."""
    found: dict[str, set[_Key]] = {}
    left = matching.unmatched_baseline if side == "baseline" else matching.unmatched_candidate
    paired = (spot for pair in matching.pairs for spot in (pair.baseline if side == "baseline" else pair.candidate))
    for spot in (*paired, *(card.spot for card in left)):
        found.setdefault(spot.site, set()).add(_key(spot))
    return found


def _sites(pair: Pair) -> str:
    sides = [[spot.site for spot in spots] for spots in (pair.baseline, pair.candidate)]
    ours, theirs = (json.dumps(side[0] if len(side) == 1 else side, ensure_ascii=False) for side in sides)
    return f"baseline = {ours}\ncandidate = {theirs}"


def _parts(sites: str, pairs: list[Pair], shared: set[_Key]) -> Iterable[str]:
    """Yield the lines of the map for one pair of sites: an entry for each layout that its ports have."""
    by_layout: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_layout.setdefault(_layout(pair), []).append(pair)
    for layout, alike in by_layout.items():
        first = alike[0]
        yield f"\n[[pair]]  # {first.by}, certainty {first.certainty:.2f}: {' '.join(first.why.split())}"
        yield from sites.split("\n")
        ports = {pair.baseline[0].port: pair.candidate[0].port for pair in alike}
        every = {_key(pair.baseline[0]) for pair in alike} == shared
        if not every or any(ours != theirs for ours, theirs in ports.items()):
            yield "ports = { " + ", ".join(f"{json.dumps(a)} = {json.dumps(b)}" for a, b in ports.items()) + " }"
        if layout:
            yield from layout.split("\n")


def _layout(pair: Pair) -> str:
    layout = pair.layout
    if layout.kind == "identity":
        return ""
    lines = [f'layout = "{layout.kind}"']
    lines += [f"groups = {layout.groups}"] if layout.kind == "interleaved" else []
    lines += ["swapped = true"] if layout.swapped and layout.kind not in ("swapped", "transposed") else []
    return "\n".join(lines)
