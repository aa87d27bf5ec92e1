"""Which rows of the batch the bad elements belong to, and whether the step without them is finite."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Remedy

MAX_ALONE = 16  # batches up to this size are tried one row at a time when the indices do not tell


PATIENCE_S = 20.0  # seconds the user's job may wait while rows are tried one by one


class Shaped(Protocol):
    """A tensor or an array."""

    @property
    def shape(self) -> Any:
        """Its sizes."""
        ...


def batch_size(inputs: Sequence[Shaped]) -> int:
    """The first dimension that most of the inputs from outside share; 0 when there is none.

    Ties go to the first input: it is what the model was called with.
    """
    sizes = Counter(int(t.shape[0]) for t in inputs if len(t.shape) > 0)
    return max(sizes, key=lambda size: (sizes[size], -list(sizes).index(size))) if sizes else 0


def rows_of(bad: ArrayLike, n_rows: int) -> tuple[int, ...]:
    """Batch rows of a mask of bad elements on the host, when its first dimension is the batch or a multiple of it.

    (batch * heads, ...) and (batch * tokens, ...) are laid out batch first. Empty: the shape does not tell.
    """
    mask = np.asarray(bad, dtype=np.bool_)
    if n_rows < 1 or mask.ndim == 0 or mask.shape[0] % n_rows or mask.shape[0] == 0:
        return ()
    return tuple(int(i) for i in np.flatnonzero(mask.reshape(n_rows, -1).any(axis=1)))


def rows_alone(n_rows: int, finite_with: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """Rows that fail on their own, found by replaying each alone."""
    if not 1 < n_rows <= MAX_ALONE:
        return ()
    return tuple(row for row in range(n_rows) if not finite_with([row]))


def confirmed(samples: tuple[int, ...], n_rows: int, finite_with: Callable[[Sequence[int]], bool]) -> bool | None:
    """Whether a replay without these rows is finite; None when nothing would be left or it cannot be run."""
    rest = [row for row in range(n_rows) if row not in set(samples)]
    if not rest or not samples:
        return None
    try:
        return finite_with(rest)
    except Exception:  # a model that wants exactly this batch size
        return None


def named(
    evidence: Evidence, rows: tuple[int, ...], n_rows: int, finite_with: Callable[[Sequence[int]], bool] | None
) -> Evidence:
    """Evidence with the batch rows in it, confirmed by a replay where one can tell.

    Args:
        evidence: with leaf and origin filled in.
        rows: those that the bad elements belong to; empty: their shape does not tell.
        n_rows: of the batch.
        finite_with: whether the step with these rows only is finite; None: a replay cannot tell.
    """
    evidence = replace(evidence, n_samples=n_rows)
    if n_rows < 1 or evidence.leaf_kind in ("param", "buffer"):
        return evidence
    if finite_with is None:
        return replace(evidence, samples=rows)
    started = time.perf_counter()
    check = confirmed(rows, n_rows, finite_with) if 0 < len(rows) < n_rows else None
    took_s = time.perf_counter() - started
    if not check and took_s * n_rows < PATIENCE_S:
        with contextlib.suppress(Exception):  # a model that wants exactly this batch size
            alone = rows_alone(n_rows, finite_with)
            if 0 < len(alone) < n_rows and confirmed(alone, n_rows, finite_with):
                return replace(evidence, samples=alone, samples_confirmed=True)
    return replace(evidence, samples=rows, samples_confirmed=check)


def remedy(evidence: Evidence) -> Remedy | None:
    """Leaving the bad rows out, if a replay without them was finite."""
    if not evidence.samples or not evidence.samples_confirmed:
        return None
    rows = ", ".join(str(row) for row in evidence.samples[:8])
    return Remedy(
        action="drop-samples",
        targets=tuple(str(row) for row in evidence.samples),
        verified=True,
        text=f"leave out batch row{'s' if len(evidence.samples) > 1 else ''} {rows}",
    )
