"""The ids that begin and pad the samples are those of the configuration, and of the tokenizer if one was named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hypocenter.checklist.data.side import SPECIAL, Seen, Side

item, order = "data.special_ids", 4


def look(side: Side) -> Seen:
    """Compare the configured special ids with the tokenizer's files and with what stands where the mask hides."""
    if not side.special and not side.tokenizer:
        return Seen(value=None, why="no special ids are configured")
    wrong = [*_unlike(side), *_padding(side)]
    known = {**{name: (i,) for name, i in side.tokenizer.items()}, **side.special}
    words = ", ".join(f"{name} {' or '.join(map(str, known[name]))}" for name in SPECIAL if name in known)
    fix = "take the ids of the tokenizer that made the data"
    return Seen(value=f"not {words}" if wrong else words, fault="; ".join(wrong), fix=fix)


def _unlike(side: Side) -> Iterator[str]:
    for name, i in side.tokenizer.items():
        configured = side.special.get(name)
        if configured is not None and i not in configured:
            yield f"{name} is {' or '.join(map(str, configured))} in the configuration and {i} in the tokenizer"


def _padding(side: Side) -> Iterator[str]:
    """Yield a fault if what the mask hides in the batches is not the configured padding."""
    pads = side.special.get("pad")
    hidden = [b.ids[b.mask == 0] for b in side.batches if b.mask is not None and set(np.unique(b.mask)) <= {0, 1}]
    ids = np.unique(np.concatenate(hidden)) if hidden else np.empty(0, np.int64)
    if pads is not None and len(ids) and not np.isin(ids, pads).any():
        shown = ", ".join(map(str, ids[:4]))
        yield f"padding is {shown} in the batches and {' or '.join(map(str, pads))} in the configuration"
