"""Tensors of two checkpoints as pairs: by name first, and by values only where names leave something over."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.comparison import Layout, Matching, Pair, SiteCard, Spot
from hypocenter.compare.matching import match
from hypocenter.compare.naming.canonical import naming_of
from hypocenter.compare.naming.tables import numbers
from hypocenter.compare.pairing.layouts import layout_of
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Checkpoint, Planned, Tensor, boxes
from hypocenter.compare.weights.lay import ALIKE, lay, orders, part_error, reordering_error, sample_error
from hypocenter.compare.weights.views import resized, turned
from hypocenter.record.facts_file import Facts, ModuleFacts
from hypocenter.summary import sketch

NEGLIGIBLE = re.compile(r"(^|\.)(inv_freq|_extra_state|num_batches_tracked|rotary_emb\.\w+|masked_bias)$")
_COUNTS = (3, 2)  # parts of a fused tensor: q, k, v; k, v or gate, up
_HINTS = (re.compile(r"(^|_)(q|query|gate|w1)(_|\d|$)"), re.compile(r"(^|_)(k|key|up|w3)(_|\d|$)"), re.compile(r"v"))
_WHY = "found by values: {}"
"""Buffers that are computed when the network is built, not trained."""
_EMBEDDING, _HEAD = "embed.tokens.weight", "head.weight"
_CONV1D = re.compile(
    r"(^|\.)(h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)"
    r"|blocks\.\d+\.(attention\.projection|output\.mapping|output\.projection))\.weight$"
)
_MINDFORMERS_FIRST = re.compile(r"(^|\.)blocks\.\d+\.output\.mapping\.weight$")
_FUSED_FIRST = re.compile(r"(^|\.)h\.\d+\.attn\.c_attn\.weight$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The pairs, and the tied tensors among what is left over."""

    matching: Matching
    negligible: tuple[str, ...] = ()


def match_checkpoints(baseline: Checkpoint, candidate: Checkpoint, manual: ManualMap | None = None) -> Matched:
    """Pair the tensors; an output layer that one side lacks is paired with the embedding it is tied to there.

    Raises:
        UnknownNameError: the map names a tensor that is not there.
        ConfigError: the map pairs a tensor twice.
    """
    sides = cards_of(baseline), cards_of(candidate)
    facts = facts_of(baseline), facts_of(candidate)
    mapped = {site for pair in manual.pairs for site in (*pair.baseline, *pair.candidate)} if manual else set[str]()
    dull = tuple(
        card.spot.site
        for cards, others in (sides, sides[::-1])
        for card in cards
        if NEGLIGIBLE.search(card.spot.site)
        and card.spot.site not in mapped
        and not any(other.spot == card.spot and other.shape == card.shape for other in others)
    )
    ours, theirs = ([card for card in cards if card.spot.site not in dull] for cards in sides)
    found = match(ours, theirs, manual, baseline_facts=facts[0], candidate_facts=facts[1])
    left = found.unmatched_baseline, found.unmatched_candidate
    if any(pair.by in ("structure", "value") for pair in found.pairs) or (left[0] and left[1]):
        named = _by_name(found)
        ours = [c if c.spot in named else measured(c, baseline.tensors[c.spot.site]) for c in ours]
        theirs = [c if c.spot in named else measured(c, candidate.tensors[c.spot.site]) for c in theirs]
        found = match(ours, theirs, manual, baseline_facts=facts[0], candidate_facts=facts[1])
        found = _fused(found, (ours, theirs), baseline, candidate)
    return Matched(matching=_tied(found, ours, theirs), negligible=dull)


def _fused(
    found: Matching, cards: tuple[list[SiteCard], list[SiteCard]], baseline: Checkpoint, candidate: Checkpoint
) -> Matching:
    """Add pairs that are fused under unknown names, in place of pairs that other matchers made by shape alone."""
    doubted = [pair for pair in found.pairs if _is_refuted(pair, baseline, candidate)]
    spots = {spot for pair in doubted for spot in pair.baseline}, {spot for pair in doubted for spot in pair.candidate}
    left = (
        [*found.unmatched_baseline, *(card for card in cards[0] if card.spot in spots[0])],
        [*found.unmatched_candidate, *(card for card in cards[1] if card.spot in spots[1])],
    )
    pairs = fused_pairs(*left, baseline.tensors, candidate.tensors)
    used = {spot for pair in pairs for spot in pair.baseline}, {spot for pair in pairs for spot in pair.candidate}
    gone = [pair for pair in doubted if pair.baseline[0] in used[0] or pair.candidate[0] in used[1]]
    released = replace(
        found, pairs=tuple(pair for pair in found.pairs if pair not in gone),
        unmatched_baseline=tuple(card for card in left[0] if card in found.unmatched_baseline
                                 or any(card.spot in pair.baseline for pair in gone)),
        unmatched_candidate=tuple(card for card in left[1] if card in found.unmatched_candidate
                                  or any(card.spot in pair.candidate for pair in gone)),
    )  # fmt: skip
    return _with(released, pairs)


def _is_refuted(pair: Pair, baseline: Checkpoint, candidate: Checkpoint) -> bool:
    """Return whether two tensors of different names were paired although their values are not alike."""
    if pair.by not in ("renamed", "structure", "value") or len(pair.baseline) > 1 or len(pair.candidate) > 1:
        return False
    (laid,) = lay(pair, baseline, candidate)
    return laid.view is None or sample_error([laid.view], [laid.target]) >= ALIKE


def facts_of(checkpoint: Checkpoint) -> Facts | None:
    """Return heads and groups as the facts in which matchers look for them; None when they are not known."""
    known = checkpoint.settings
    if not known:
        return None
    names = {"num_query_groups": "num_key_value_heads"}
    attributes = {names.get(name, name): value for name, value in known.items()}
    return Facts(modules=(ModuleFacts(path="", attributes=attributes),))


def _by_name(found: Matching) -> set[object]:
    pairs = [pair for pair in found.pairs if pair.by in ("manual", "exact", "renamed")]
    return {spot for pair in pairs for spot in (*pair.baseline, *pair.candidate)}


def _tied(found: Matching, ours: list[SiteCard], theirs: list[SiteCard]) -> Matching:
    """Pair an output layer that is left over with the other side's embedding when that side has no output layer."""
    roles = [_roles(ours), _roles(theirs)]
    pairs: list[Pair] = []
    for side, left in enumerate((found.unmatched_baseline, found.unmatched_candidate)):
        head, embedding = roles[side].get(_HEAD), roles[1 - side].get(_EMBEDDING)
        if head is None or head not in left or embedding is None or _HEAD in roles[1 - side]:
            continue
        a, b = (head, embedding) if side == 0 else (embedding, head)
        layout = layout_of(a, b, padding=True)
        if layout:
            why = "one side has no output layer: there it is tied to the embedding"
            pairs.append(Pair(baseline=(a.spot,), candidate=(b.spot,), by="tied", layout=layout, why=why))
    return _with(found, pairs)


def _with(found: Matching, pairs: Sequence[Pair]) -> Matching:
    used = {spot for pair in pairs for spot in (*pair.baseline, *pair.candidate)}
    return replace(
        found,
        pairs=(*found.pairs, *pairs),
        unmatched_baseline=tuple(card for card in found.unmatched_baseline if card.spot not in used),
        unmatched_candidate=tuple(card for card in found.unmatched_candidate if card.spot not in used),
    )


def _roles(cards: list[SiteCard]) -> dict[str, SiteCard]:
    naming = naming_of(cards)
    return {naming.role(card).name: card for card in cards}


def cards_of(checkpoint: Checkpoint) -> list[SiteCard]:
    """Return a card of every tensor, from names and shapes alone."""
    turned = _is_turned(checkpoint.tensors)
    return [
        SiteCard(
            spot=Spot(phase="param", site=name, port="value"), order=order, dtype=tensor.dtype, shape=tensor.shape,
            n=tensor.n, module="Conv1D" if turned and _CONV1D.search(name) else "",
        )
        for order, (name, tensor) in enumerate(checkpoint.tensors.items())
    ]  # fmt: skip


def measured(card: SiteCard, tensor: Tensor) -> SiteCard:
    """Return the card with norm, largest value and sketch of the tensor; as it is when it has no float values."""
    if not elements.is_floating(tensor.dtype) or isinstance(tensor, Planned):
        return card
    total, sumsq, absmax = np.zeros(sketch.K * sketch.K), 0.0, 0.0
    for box in boxes(tensor.shape):
        part = elements.values(tensor.read(box), tensor.dtype)
        finite = np.where(np.isfinite(part), part, 0.0)
        absmax = max(absmax, float(np.abs(finite).max(initial=0.0)))
        sumsq += float(np.square(finite).sum())
        place = sketch.Placement(shape=tensor.shape, offset=tuple(start for start, _ in box))
        with np.errstate(over="ignore"):
            total += sketch.sketch(finite.astype(np.float32), place if tensor.shape else None)
    return replace(card, sumsq=sumsq, absmax=absmax, sketch=tuple(total.tolist()))


def _is_turned(tensors: dict[str, Tensor]) -> bool:
    """Return whether GPT-2's matrices are kept (in, out), as transformers' Conv1D does and nanoGPT does not."""
    for name, tensor in tensors.items():
        if _FUSED_FIRST.search(name) and len(tensor.shape) == 2:
            return tensor.shape[1] == 3 * tensor.shape[0]
        if _MINDFORMERS_FIRST.search(name) and len(tensor.shape) == 2:
            return tensor.shape[1] > tensor.shape[0]  # to the width of the MLP
    return False


# Names only say what is tried first. Shapes say what can be, and the values say what is: in which order the parts lie,
# one after another or group by group (per head, per query group), and whether the whole is transposed.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """The tensors of one checkpoint that are left over."""

    cards: Sequence[SiteCard]
    tensors: Mapping[str, Tensor]

    def of(self, card: SiteCard) -> Tensor:
        return self.tensors[card.spot.site]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    whole: SiteCard
    parts: tuple[SiteCard, ...]
    layout: Layout


def fused_pairs(
    ours: Sequence[SiteCard], theirs: Sequence[SiteCard], baseline: Mapping[str, Tensor],
    candidate: Mapping[str, Tensor],
) -> list[Pair]:  # fmt: skip
    """Pair what is fused on one side and split on the other, and what both fuse in another order.

    Args:
        ours: measured cards of the baseline's tensors that are left over.
        theirs: as `ours`, of the candidate.
        baseline: its tensors, to be read.
        candidate: as `baseline`.
    """
    sides = (
        _Side(cards=_telling(ours, baseline), tensors=baseline),
        _Side(cards=_telling(theirs, candidate), tensors=candidate),
    )
    pairs = [
        Pair(baseline=(found.whole.spot,), candidate=tuple(part.spot for part in found.parts), by="value",
             layout=found.layout, why=_WHY.format(_in_words(found)))
        for found in _split(sides[0], sides[1])
    ]  # fmt: skip
    pairs += [
        Pair(baseline=tuple(part.spot for part in found.parts), candidate=(found.whole.spot,), by="value",
             layout=found.layout, why=_WHY.format(_in_words(found)))
        for found in _split(sides[1], sides[0])
    ]  # fmt: skip
    used = {spot for pair in pairs for spot in (*pair.baseline, *pair.candidate)}
    left = [replace(side, cards=[card for card in side.cards if card.spot not in used]) for side in sides]
    return [*pairs, *_reordered(left[0], left[1])]


def _telling(cards: Sequence[SiteCard], tensors: Mapping[str, Tensor]) -> list[SiteCard]:
    """Return the cards of tensors that have values and a dimension along which they could be fused."""
    return [card for card in cards if card.shape and not isinstance(tensors[card.spot.site], Planned)]


def _in_words(found: _Found) -> str:
    names = ", ".join(part.spot.site.split(".")[-2 if "." in part.spot.site else -1] for part in found.parts)
    groups = found.layout.groups
    order = "one after another" if found.layout.kind == "concatenated" else f"in {groups} groups"
    return f"{names} lie {order}{', transposed' if found.layout.swapped else ''}"


def _split(wholes: _Side, parts: _Side) -> Iterator[_Found]:
    """Find what is fused on the side of `wholes` and split on that of `parts`; no tensor is taken twice."""
    taken: set[object] = set()
    believed: list[Layout] = []  # orders that other tensors had: tried first
    families = _families(parts.cards)
    for whole in wholes.cards:
        groups = sorted(families, key=lambda group: numbers(group[0].spot.site) != numbers(whole.spot.site))
        found = next(
            (
                _Found(whole=whole, parts=chosen, layout=layout)
                for group in groups
                for chosen in _choices(whole, [card for card in group if card.spot not in taken])
                for layout in _orders_that_fit(wholes.of(whole), [parts.of(card) for card in chosen], believed)
            ),
            None,
        )
        if found is not None:
            taken.update(card.spot for card in found.parts)
            shape = Layout(kind=found.layout.kind, groups=found.layout.groups, swapped=found.layout.swapped)
            believed = [shape, *(layout for layout in believed if layout != shape)]
            yield found


def _families(cards: Sequence[SiteCard]) -> list[list[SiteCard]]:
    """Group tensors whose names differ in one word, the last or the one before it: `attn.*.weight`, `attn.*`."""
    found: dict[tuple[int, tuple[str, ...]], list[SiteCard]] = defaultdict(list)
    for card in cards:
        words = tuple(card.spot.site.split("."))
        for at in (1, 2):
            if len(words) >= at:
                found[at, (*words[: len(words) - at], *words[len(words) - at + 1 :])].append(card)
    return [group for group in found.values() if len(group) > 1]


def _choices(whole: SiteCard, group: Sequence[SiteCard]) -> Iterator[tuple[SiteCard, ...]]:
    """Yield parts that the whole can hold, by their shapes and norms; first those whose names say so."""
    likely = sorted(group, key=_hint)
    for n in _COUNTS:
        for chosen in itertools.permutations(likely, n):
            norm = math.sqrt(sum(card.sumsq for card in chosen))
            is_alike = abs(math.sqrt(whole.sumsq) - norm) <= ALIKE * max(norm, math.sqrt(whole.sumsq))
            if sum(math.prod(card.shape) for card in chosen) == math.prod(whole.shape) and is_alike:
                yield chosen


def _hint(card: SiteCard) -> int:
    words = card.spot.site.lower().split(".")[-2:]
    return next((at for at, hint in enumerate(_HINTS) if any(hint.search(word) for word in words)), len(_HINTS))


def _orders_that_fit(whole: Tensor, parts: Sequence[Tensor], believed: Sequence[Layout]) -> Iterator[Layout]:
    """Yield the layouts, believed ones first, under which the whole has the values of the parts."""
    if any(len(part.shape) != len(whole.shape) for part in parts):
        return
    sizes = tuple(part.shape[0] for part in parts)
    for is_turned in (False, True) if len(whole.shape) == 2 else (False,):
        laid = turned(whole) if is_turned else whole
        if any(part.shape[1:] != laid.shape[1:] for part in parts) or sum(sizes) != laid.shape[0]:
            continue
        if sample_error([resized(laid, 0, 1)], [resized(parts[0], 0, 1)]) >= ALIKE:
            continue  # whatever the order, the whole begins with the first row of the first part
        likely = [Layout(kind=known.kind, dim=0, sizes=sizes, groups=known.groups, swapped=is_turned)
                  for known in believed if known.swapped == is_turned]  # fmt: skip
        every = orders(Layout(kind="concatenated", dim=0, sizes=sizes, groups=1, swapped=is_turned), sizes)
        yield from (layout for layout in (*likely, *every) if part_error(layout, whole, parts) < ALIKE)


def _reordered(ours: _Side, theirs: _Side) -> Iterator[Pair]:
    """Pair tensors that are fused on both sides, with their parts in another order."""
    taken: set[object] = set()
    believed: list[Layout] = []  # of other tensors: a bias does not show what its parts are
    for mine in sorted(ours.cards, key=lambda card: -len(card.shape)):
        same = [card for card in theirs.cards if card.spot not in taken and _can_be(mine, card)]
        for yours in sorted(same, key=lambda card: numbers(card.spot.site) != numbers(mine.spot.site)):
            layout = _reordering(ours.of(mine), theirs.of(yours), believed)
            if layout is not None:
                believed = [layout, *(known for known in believed if known != layout)]
                taken.add(yours.spot)
                why = _WHY.format("fused on both sides, in another order")
                yield Pair(baseline=(mine.spot,), candidate=(yours.spot,), by="value", layout=layout, why=why)
                break


def _can_be(mine: SiteCard, yours: SiteCard) -> bool:
    a, b = math.sqrt(mine.sumsq), math.sqrt(yours.sumsq)
    return sorted(mine.shape) == sorted(yours.shape) and abs(a - b) <= ALIKE * max(a, b)


def _reordering(mine: Tensor, yours: Tensor, believed: Sequence[Layout]) -> Layout | None:
    """Return the layout (parts and their order) of the candidate that makes both tensors equal; None if none."""
    is_matrix = len(mine.shape) == 2
    for is_turned, dim in itertools.product((False, True), (0, 1)) if is_matrix else ((False, 0),):
        laid = turned(mine) if is_turned else mine
        if laid.shape != yours.shape or sample_error([resized(laid, dim, 1)], [resized(yours, dim, 1)]) >= ALIKE:
            continue
        likely = [replace(known, swapped=is_turned, dim=dim) for known in believed]
        every = (layout for sizes in _sizes(yours, dim) for layout in _reorderings(sizes, dim, is_turned))
        fitting = (layout for layout in (*likely, *every) if reordering_error(layout, mine, yours) < ALIKE)
        if (found := next(fitting, None)) is not None:
            return found
    return None


def _reorderings(sizes: tuple[int, ...], dim: int, is_turned: bool) -> Iterator[Layout]:
    for order in orders(Layout(kind="concatenated", dim=dim, sizes=sizes, groups=1, swapped=is_turned), sizes):
        if order.kind == "interleaved":
            yield from (order, replace(order, kind="concatenated"))


def _sizes(fused: Tensor, dim: int) -> Iterator[tuple[int, ...]]:
    """Yield sizes that its parts may have: three alike; a query as wide as the input and two alike; two alike."""
    total, width = fused.shape[dim], fused.shape[1 - dim] if len(fused.shape) == 2 else 0
    if total % 3 == 0:
        yield (total // 3,) * 3
    rest = total - width
    if 0 < rest < 2 * width and rest % 2 == 0:
        yield (width, rest // 2, rest // 2)
    if total % 2 == 0:
        yield (total // 2,) * 2
