"""Tensors of two checkpoints as pairs: by name first, and by values only where names leave something over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.comparison import Matching, Pair, SiteCard, Spot
from hypocenter.compare.matching import match
from hypocenter.compare.naming.canonical import naming_of
from hypocenter.compare.pairing.layouts import layout_of
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Checkpoint, Planned, Tensor, boxes
from hypocenter.compare.weights.fused import fused_pairs
from hypocenter.compare.weights.lay import ALIKE, lay, sample_error
from hypocenter.record.facts_file import Facts, ModuleFacts
from hypocenter.summary import sketch

NEGLIGIBLE = re.compile(r"(^|\.)(inv_freq|_extra_state|num_batches_tracked|rotary_emb\.\w+|masked_bias)$")
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
    """Pairs, and the tied tensors among what is left over."""

    matching: Matching
    negligible: tuple[str, ...] = ()


def match_checkpoints(baseline: Checkpoint, candidate: Checkpoint, manual: ManualMap | None = None) -> Matched:
    """Pair the tensors; an output layer that one side has not is paired with the embedding it is tied to there.

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
    """With what is fused under names that no table knows, and what other matchers took for the same by its shape."""
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
    """Whether two tensors of different names were paired, and their values are not alike."""
    if pair.by not in ("renamed", "structure", "value") or len(pair.baseline) > 1 or len(pair.candidate) > 1:
        return False
    (laid,) = lay(pair, baseline, candidate)
    return laid.view is None or sample_error([laid.view], [laid.target]) >= ALIKE


def facts_of(checkpoint: Checkpoint) -> Facts | None:
    """Heads and groups, as the matchers look for them."""
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
    """A card of every tensor, from names and shapes alone."""
    turned = _is_turned(checkpoint.tensors)
    return [
        SiteCard(
            spot=Spot(phase="param", site=name, port="value"), order=order, dtype=tensor.dtype, shape=tensor.shape,
            n=tensor.n, module="Conv1D" if turned and _CONV1D.search(name) else "",
        )
        for order, (name, tensor) in enumerate(checkpoint.tensors.items())
    ]  # fmt: skip


def measured(card: SiteCard, tensor: Tensor) -> SiteCard:
    """The card with what values tell."""
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
    """Whether GPT-2's matrices are kept (in, out), as transformers' Conv1D and MindFormers do and nanoGPT does not."""
    for name, tensor in tensors.items():
        if _FUSED_FIRST.search(name) and len(tensor.shape) == 2:
            return tensor.shape[1] == 3 * tensor.shape[0]
        if _MINDFORMERS_FIRST.search(name) and len(tensor.shape) == 2:
            return tensor.shape[1] > tensor.shape[0]  # to the width of the MLP
    return False
