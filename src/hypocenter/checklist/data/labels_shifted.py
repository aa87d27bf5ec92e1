"""How far ahead of its own place is the token that each place learns? One, for a causal language model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hypocenter.checklist.data.side import IGNORED, Ids, Seen, Side

_OFFSETS = range(-2, 5)
_AGREE = 0.98  # of the places that count: the same token stands that far ahead
_APART = 0.9  # the next best offset must agree less, or the text repeats itself too much to tell
_WORDS = {
    1: "the next token", 0: "its own token", 2: "the token after the next", -1: "the token before",
}  # fmt: skip
_FAULTS = {
    0: "labels were never shifted: each place learns the token that it was given",
    2: "labels were shifted twice: each place learns the token after the next",
}
_FIX = "shift once: in the data set, the collator, the model or the loss, and in one of them only"

item, order = "data.labels_shifted", 2


def look(side: Side) -> Seen:
    """Tell by how much labels are shifted: by the tokens that the loss asks for, else by the labels as given."""
    asked = [(batch.ids, batch.target, -1) for batch in side.batches if batch.target is not None]
    if asked:
        offset, n = _offset(asked)
        if offset is None:
            return Seen(value=None, why=_why_not(n))
        word = _WORDS.get(offset, f"the token {offset:+d} places away")
        return Seen(value=word, why=f"at {n:,} places", fault=_FAULTS.get(offset, ""), fix=_FIX)
    given = [(batch.ids, batch.labels, IGNORED) for batch in side.batches if batch.labels is not None]
    if not given:
        return Seen(value=None, why="no labels were seen, and no logits as wide as the vocabulary")
    offset, n = _offset(given)
    if offset is None:
        return Seen(value=None, why=_why_not(n))
    word = _WORDS.get(offset, f"the token {offset:+d} places away")
    return Seen(value=f"labels hold {word}", why="whether the model shifts them as well was not seen")


def _offset(pairs: Iterable[tuple[Ids, Ids, int]]) -> tuple[int | None, int]:
    """Return the one offset at which nearly all places agree (None: none), and how many places count."""
    agree, count = dict.fromkeys(_OFFSETS, 0), dict.fromkeys(_OFFSETS, 0)
    n = 0
    for ids, wanted, nothing in pairs:
        counts = wanted != nothing
        n += int(counts.sum())
        for offset in _OFFSETS:
            places = np.arange(ids.shape[1])
            inside = (places + offset >= 0) & (places + offset < ids.shape[1])
            there = ids[:, places[inside] + offset]
            looked_at = counts[:, inside]
            agree[offset] += int((looked_at & (there == wanted[:, inside])).sum())
            count[offset] += int(looked_at.sum())
    shares = {offset: agree[offset] / count[offset] for offset in _OFFSETS if count[offset]}
    ranked = sorted(shares, key=lambda offset: -shares[offset])
    if not ranked or shares[ranked[0]] < _AGREE or (len(ranked) > 1 and shares[ranked[1]] > _APART):
        return None, n
    return ranked[0], n


def _why_not(n: int) -> str:
    if not n:
        return "the loss asks for no token at all"
    return "labels are not the inputs moved by a few places (no causal language model?), or the text repeats itself"
