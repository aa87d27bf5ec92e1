"""Which rows of the batch the bad elements belong to, and whether the step without them is finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

MAX_ALONE = 16  # batches up to this size are tried one row at a time when the indices do not tell


def batch_size(inputs: Sequence[torch.Tensor]) -> int:
    """The first dimension that most of the inputs from outside share; 0 when there is none.

    Ties go to the first input: it is what the model was called with.
    """
    sizes = Counter(int(t.shape[0]) for t in inputs if t.dim() > 0)
    return max(sizes, key=lambda size: (sizes[size], -list(sizes).index(size))) if sizes else 0


def rows_of(bad: torch.Tensor, n_rows: int) -> tuple[int, ...]:
    """Batch rows of a boolean mask of bad elements, when its first dimension is the batch or a multiple of it.

    (batch * heads, ...) and (batch * tokens, ...) are laid out batch first. Empty: the shape does not tell.
    """
    if n_rows < 1 or bad.dim() == 0 or bad.shape[0] % n_rows or bad.shape[0] == 0:
        return ()
    group = bad.shape[0] // n_rows
    hit = bad.reshape(n_rows, group, -1).flatten(1).any(1)
    return tuple(int(i) for i in hit.nonzero().flatten().tolist())


def rows_alone(n_rows: int, finite_with: Callable[[torch.Tensor], bool]) -> tuple[int, ...]:
    """Rows that fail on their own, found by replaying each alone."""
    if not 1 < n_rows <= MAX_ALONE:
        return ()
    return tuple(row for row in range(n_rows) if not finite_with(torch.tensor([row])))


def confirmed(samples: tuple[int, ...], n_rows: int, finite_with: Callable[[torch.Tensor], bool]) -> bool | None:
    """Whether a replay without these rows is finite; None when nothing would be left or it cannot be run."""
    rest = [row for row in range(n_rows) if row not in set(samples)]
    if not rest or not samples:
        return None
    try:
        return finite_with(torch.tensor(rest))
    except Exception:  # a model that wants exactly this batch size
        return None
