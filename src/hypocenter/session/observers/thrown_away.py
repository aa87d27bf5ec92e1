"""Micro-batches whose gradients are in no update, although they look like those that are. For HC233.

When there are more micro-batches than usual before an update, or the gradient that is used is not their sum, the
replays tell which of them are in it. Programs leave out an update on purpose where its gradient or loss is not finite
or too large. Then it is larger than what they use; so only what is no larger than something that was used lately is
spoken of.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.session.events import Update

LATELY = 32  # updates
USUAL = 3  # updates in a row with as many micro-batches, before one with more
NEAR = 0.01  # of the weight of a micro-batch
SURE, SURE_OF_SAMPLES = 0.999, 0.8  # of the largest norm: what was thrown away is smaller, also where it is estimated


@dataclass(slots=True)
class _Seen:
    """What is known of one optimizer's updates: the usual number of micro-batches, and their size."""

    number: int  # of micro-batches at an update
    n_usual: int = 0  # updates with so many
    more: int = 0  # than that, at the last update
    n_with_more: int = 0  # updates in a row
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))  # of gradients that were used
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))


class ThrownAway:
    """Counts micro-batches, and remembers the size of the gradients and losses that were used."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by id of the first parameter

    def n_more(self, update: Update) -> int:
        """Return how many micro-batches more than usual there are before this update."""
        seen = self._of(update)
        more = len(update.microbatches) - seen.number
        seen.n_with_more = seen.n_with_more + 1 if more == seen.more > 0 else int(more > 0)
        seen.more = more
        if more < 0 or seen.n_with_more > USUAL:
            self.all_count(update)
            return 0
        seen.n_usual += more == 0
        return more

    def all_count(self, update: Update) -> None:
        """Take the present number of micro-batches as usual from here on."""
        seen = self._of(update)
        seen.number, seen.n_usual, seen.more, seen.n_with_more = len(update.microbatches), 0, 0, 0

    def remember(self, update: Update, norm: float) -> None:
        """Remember what was used: the norm of the gradient before a clip, and the losses."""
        seen = self._of(update)
        if math.isfinite(norm) and update.check.is_finite:
            seen.norms.append(norm)
            seen.losses += update.check.losses[-seen.number :]

    def is_known(self, update: Update) -> bool:
        """Return whether there were enough updates to know what is usual. Ask this before `n_more`."""
        return self._of(update).n_usual >= USUAL

    def looks_usual(self, update: Update, n_thrown: int, norm: float, *, is_of_samples: bool) -> bool:
        """Return whether what is thrown away is no larger than what was used lately."""
        seen, losses = self._of(update), update.check.losses
        if len(losses) != len(update.microbatches) or not seen.norms or not seen.losses:
            return False
        largest = max(*seen.losses, *losses[n_thrown:])
        sure = SURE_OF_SAMPLES if is_of_samples else SURE
        return norm <= sure * max(seen.norms) and max(losses[:n_thrown]) <= largest

    def _of(self, update: Update) -> _Seen:
        key = id(update.parameters[0]) if update.parameters else 0
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(len(update.microbatches))
        return seen


def n_thrown(columns: Sequence[NDArray[Any]], target: NDArray[Any]) -> int | None:
    """Return how many of the first micro-batches are not in the used gradient; None: it is made otherwise.

    Args:
        columns: gradients of each micro-batch.
        target: what is used.
    """
    if target.size <= 2 * len(columns):
        return None
    matrix = np.stack(columns, axis=1)  # [n elements, n micro-batches]
    if not np.isfinite(matrix).all() or not np.isfinite(target).all():
        return None
    weights, _, rank, _ = np.linalg.lstsq(matrix, target, rcond=None)
    rest = float(np.linalg.norm(matrix @ weights - target))
    usual = float(weights[-1])
    if rank < len(columns) or usual <= 0 or rest > NEAR * float(np.linalg.norm(target)):
        return None
    n = int(np.argmax(weights > usual / 2))
    wanted = np.where(np.arange(len(columns)) < n, 0.0, usual)
    return n if np.max(np.abs(weights - wanted)) <= NEAR * usual else None


def norm_of(columns: Sequence[NDArray[Any]], n: int, norm: float) -> float:
    """Estimate the L2 norm of the first `n` micro-batches' sum from that of the others, by the samples."""
    kept = float(np.linalg.norm(np.sum(columns[n:], axis=0)))
    thrown = float(np.linalg.norm(np.sum(columns[:n], axis=0)))
    return norm * thrown / kept if kept > 0 else math.inf
