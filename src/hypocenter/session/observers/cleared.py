"""Every how many updates a program sets gradients to zero, where one still held that of the step before. For HC232.

Who forgets to, and who steps at each micro-batch of an accumulation, look alike at one step. The versions of a gradient
tell them apart: each backward writes once, and who sets it to zero writes once more, or puts another tensor there.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypocenter.session.events import Update
from hypocenter.session.framework import Framework
from hypocenter.tap.weakly import Ref

CLEARS = 3  # so far apart each
MOST = 128  # updates that are followed


class Cleared:
    """Follows the first gradient of one optimizer, from the update on that `begin` is told of.

    Attributes:
        since: the step of that update.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._key: int | None = None  # id of its parameter
        self._gradient: Any = lambda: None
        self._version = 0
        self._writes: list[float] = []  # between one update and the next
        self.since = 0

    def begin(self, update: Update) -> None:
        """Follow the gradients of this update's optimizer; only of the first one that is told of."""
        if self._key is None and update.gradients:
            self._key, self.since = id(update.gradients[0][0]), update.step
            self._written(update.gradients[0][1])

    def every(self, update: Update) -> int:
        """Return, once, at every how many updates they are set to zero, if that is more than one; else 0."""
        if self._key is None or len(self._writes) >= MOST:
            return 0
        if not update.gradients or id(update.gradients[0][0]) != self._key:
            return 0
        self._writes.append(self._written(update.gradients[0][1]))
        least = min(self._writes)
        clears = [at for at, writes in enumerate(self._writes) if writes > least][-CLEARS:]
        apart = {after - before for before, after in itertools.pairwise(clears)}
        if len(clears) < CLEARS or len(apart) > 1 or apart == {1}:
            return 0
        self._writes = [math.nan] * MOST  # it is told
        return apart.pop()

    def _written(self, gradient: Any) -> float:
        """Return how often it was written to since the last look; infinite if it is another tensor."""
        versions = self._framework.versions([gradient])
        if not versions:
            return math.nan
        is_same, before = self._gradient() is gradient, self._version
        self._gradient, self._version = Ref(gradient), versions[0]
        return versions[0] - before if is_same else math.inf
