"""Every id is at least 0 and below the number of rows of the embedding."""

from __future__ import annotations

import numpy as np

from hypocenter.checklist.data.side import Seen, Side

_SIXTEEN_BITS = 1 << 16
_ENOUGH = 100_000  # ids, before their not being above 65,535 says anything

item, order = "data.ids_in_range", 1


def look(side: Side) -> Seen:
    """Tell whether all ids are in range, or the first place with an id outside and how many there are."""
    if side.vocabulary is None:
        return Seen(value=None, why="the size of the vocabulary is not known")
    outside, first = 0, ""
    for batch in side.batches:
        bad = (batch.ids < 0) | (batch.ids >= side.vocabulary)
        if bad.any():
            sample, place = np.argwhere(bad)[0]
            first = first or (
                f"id {batch.ids[sample, place]} at step {batch.step}, micro-batch {batch.microbatch}, sample {sample}, "
                f"place {place}"
            )
            outside += int(bad.sum())
    if outside:
        return Seen(
            value="outside", fault=f"{outside:,} ids are outside of 0 to {side.vocabulary - 1:,}, the first is {first}",
            fix="use the tokenizer that belongs to the weights",
        )  # fmt: skip
    n = sum(batch.ids.size for batch in side.batches)
    highest = max(int(batch.ids.max(initial=0)) for batch in side.batches)
    if side.vocabulary > _SIXTEEN_BITS > highest and n >= _ENOUGH:
        return Seen(
            value="in range", fault=f"no id is above 65,535 in {n:,} tokens of a vocabulary of {side.vocabulary:,}: "
            "were they stored in 16 bits, where larger ones wrap around?", fix="store ids as uint32",
        )  # fmt: skip
    return Seen(value="in range", why=f"{n:,} ids, the highest {highest:,} of {side.vocabulary:,}")
