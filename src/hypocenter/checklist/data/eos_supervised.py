"""Is the end of a sequence among the tokens that are learned? A pad id equal to it may mask it away."""

from __future__ import annotations

import numpy as np

from hypocenter.checklist.data.side import Ids, Seen, Side

item, order = "data.eos_supervised", 3


def look(side: Side) -> Seen:
    """Tell whether the end of sequence is learned in the batches, is not, or never occurs."""
    ends = side.special.get("eos")
    if not ends:
        return Seen(value=None, why="the id of end of sequence is not known")
    n_there = n_learned = n_known = 0
    for batch in side.batches:
        wanted = batch.target if batch.target is not None else batch.labels
        if wanted is None:
            continue
        n_known += 1
        n_there += int(_is(batch.ids, ends).sum())
        n_learned += int(_is(wanted, ends).sum())
    if not n_known:
        return Seen(value=None, why="no labels were seen")
    if not n_there and not n_learned:
        return Seen(value=None, why=f"no end of sequence ({_said(ends)}) in {n_known:,} batches")
    if n_learned:
        return Seen(value="learned", why=f"{n_learned:,} places learn it")
    same = "; it is also the id of padding, by which labels are masked" if ends == side.special.get("pad") else ""
    return Seen(
        value="never learned", fault=f"{n_there:,} ends of sequence ({_said(ends)}), and no place learns one{same}",
        fix="mask padding by length or attention mask, not by id",
    )  # fmt: skip


def _is(values: Ids, ids: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.isin(values, ids)


def _said(ids: tuple[int, ...]) -> str:
    return " or ".join(map(str, ids))
