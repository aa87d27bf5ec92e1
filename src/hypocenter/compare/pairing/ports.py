"""Ports of two modules that are the same: `in[0]` against `in[hidden_states]`, `out[0]` against `out[logits]`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypocenter.compare.comparison import Layout, SiteCard
from hypocenter.compare.pairing.layouts import kind_of, layout_of

_PARTS = re.compile(r"\[([^\]]*)\]")
_ALIASES = {
    "in": {
        "hidden_states": "0", "x": "0", "input": "0", "inputs": "0", "input_": "0", "hidden_state": "0", "h": "0",
        "input_ids": "0", "tokens": "0", "ids": "0", "idx": "0", "input_tensor": "0", "inputs_embeds": "0",
        "target": "labels", "targets": "labels", "label": "labels",
        "positions": "position_ids", "input_positions": "position_ids", "input_position": "position_ids",
        "mask": "attention_mask", "attn_mask": "attention_mask",
    },
    "out": {"last_hidden_state": "0", "logits": "0", "hidden_states": "0", "output": "0"},
}  # fmt: skip
"""What model libraries call the one tensor that goes through a module: its first positional argument elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPair:
    """Two spots of paired modules that hold the same value."""

    baseline: SiteCard
    candidate: SiteCard
    layout: Layout
    why: str  # "" when the ports have the same name


def canonical_port(port: str) -> str:
    """Return the port under the name that all namings share: `grad_in[hidden_states]` becomes `grad_in[0]`."""
    head, bracket, _ = port.partition("[")
    if not bracket:
        return port
    parts = _PARTS.findall(port)
    aliases = _ALIASES["out" if head.endswith("out") else "in"]
    parts[0] = aliases.get(parts[0], parts[0])
    while len(parts) > 1 and parts[-1] == "0":  # a tuple of one tensor, or the first of a tuple
        parts.pop()
    return head + "".join(f"[{part}]" for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """All spots of the two modules, those that are paired already too: a shape of its own is judged among these."""

    baseline: Sequence[SiteCard]
    candidate: Sequence[SiteCard]


def pair_ports(
    baseline: Sequence[SiteCard],
    candidate: Sequence[SiteCard],
    siblings: Siblings | None = None,
    *,
    padding: bool = False,
) -> list[PortPair]:
    """Pair the spots of two modules that are the same: by port name, by its canonical name, by a unique shape.

    Args:
        baseline: spots that are left over.
        candidate: as `baseline`.
        siblings: what the modules have beside; nothing when not given.
        padding: whether the vocabulary may be padded.
    """
    pairs: list[PortPair] = []
    whole = siblings or Siblings(baseline=baseline, candidate=candidate)
    all_ours, all_theirs = _grouped(whole.baseline), _grouped(whole.candidate)
    ours, theirs = _grouped(baseline), _grouped(candidate)
    for key in [key for key in ours if key in theirs]:
        pairs += _pair_group((all_ours[key], all_theirs[key]), (ours[key], theirs[key]), padding)
    return pairs


def _grouped(cards: Iterable[SiteCard]) -> dict[tuple[str, str, int], list[SiteCard]]:
    groups: dict[tuple[str, str, int], list[SiteCard]] = defaultdict(list)
    for card in cards:
        groups[(card.spot.phase, direction(card.spot.port), card.spot.call)].append(card)
    return groups


def direction(port: str) -> str:
    """Return `in`, `out`, `grad_in`, `grad_out`, or the port itself when it has no parts: `value`, `exp_avg`."""
    return port.partition("[")[0]


def _pair_group(
    whole: tuple[list[SiteCard], list[SiteCard]], left: tuple[list[SiteCard], list[SiteCard]], padding: bool
) -> list[PortPair]:
    pairs: list[PortPair] = []
    for key, why in ((_same, ""), (_canonical, "{} is {}")):
        by_name = (_unique(left[0], key), _unique(left[1], key))
        for name, a in by_name[0].items():
            b = by_name[1].get(name)
            layout = b and layout_of(a, b, padding=padding)
            if b and layout:
                pairs.append(_pair(a, b, layout, why))
                left[0].remove(a)
                left[1].remove(b)
    pairs += _by_tuple(whole, left)
    return pairs + _by_shape(whole, left)


def _by_tuple(
    whole: tuple[list[SiteCard], list[SiteCard]], left: tuple[list[SiteCard], list[SiteCard]]
) -> list[PortPair]:
    """Pair members of tuples that have other names or none: of the only tuple with those shapes on either side."""
    tuples = (_tuples(whole[0]), _tuples(whole[1]))
    pairs: list[PortPair] = []
    for key, ours in tuples[0].items():
        theirs = tuples[1].get(key, [])
        both = list(zip(ours, theirs, strict=False))
        layouts = [layout_of(a, b) if a in left[0] and b in left[1] else None for a, b in both]
        if both and all(layouts):
            for (a, b), layout in zip(both, layouts, strict=True):
                pairs.append(_pair(a, b, layout or Layout(), "{} is {}, of the only tuple of those shapes"))
                left[0].remove(a)
                left[1].remove(b)
    return pairs


def _tuples(cards: Iterable[SiteCard]) -> dict[str, list[SiteCard]]:
    """Group members of tuples of several tensors, in order, by their shapes; tuples of equal shapes are left out."""
    of_name: dict[str, dict[str, SiteCard]] = defaultdict(dict)
    for card in cards:
        parts = _PARTS.findall(card.spot.port)
        if len(parts) == 2:
            of_name[parts[0]][parts[1]] = card
    found: dict[str, list[list[SiteCard]]] = defaultdict(list)
    for members in of_name.values():
        if len(members) > 1 and all(len(card.shape) > 1 for card in members.values()):
            key = [(part, [n for n in members[part].shape if n != 1], kind_of(members[part].dtype)) for part in members]
            found[str(sorted(key))].append([members[part] for part in sorted(members)])
    return {key: tuples[0] for key, tuples in found.items() if len(tuples) == 1}


def _by_shape(
    whole: tuple[list[SiteCard], list[SiteCard]], left: tuple[list[SiteCard], list[SiteCard]]
) -> list[PortPair]:
    """Pair spots that are left and whose shape no other port of their module has, on both sides."""
    shapes = (_unique(whole[0], _shape_key), _unique(whole[1], _shape_key))
    pairs: list[PortPair] = []
    for key, a in shapes[0].items():
        b = shapes[1].get(key)
        layout = b and layout_of(a, b)
        if b and layout and a in left[0] and b in left[1] and len(a.shape) != 1:
            pairs.append(_pair(a, b, layout, "{} is {}, the only one of that shape"))
    return pairs


def _pair(a: SiteCard, b: SiteCard, layout: Layout, why: str) -> PortPair:
    return PortPair(baseline=a, candidate=b, layout=layout, why=why.format(a.spot.port, b.spot.port))


def _same(card: SiteCard) -> str:
    return card.spot.port


def _canonical(card: SiteCard) -> str:
    return canonical_port(card.spot.port)


def _shape_key(card: SiteCard) -> str:
    return f"{sorted(card.shape)}{kind_of(card.dtype)}"


def _unique(cards: Iterable[SiteCard], key: object) -> dict[str, SiteCard]:
    """Return cards by key; those whose key others have too are left out."""
    found: dict[str, list[SiteCard]] = defaultdict(list)
    for card in cards:
        found[key(card)].append(card)  # type: ignore[operator]
    return {name: cards[0] for name, cards in found.items() if len(cards) == 1}
