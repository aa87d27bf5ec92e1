"""How long the program may wait for all that is done again of one step: replays, adjudication, samples, cure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

import torch

from hypocenter.replay.impossible import OutOfTime

SHARE = 0.25  # of the shortest timeout of the job's process groups: the other ranks wait in a collective meanwhile
ALONE_S = 150.0  # without groups, a quarter of NCCL's default of ten minutes: one process waits no longer than many


class Deadline:
    """The time for one step. It runs from the first thing that is done again in that step.

    Args:
        alone_s: seconds where no other rank waits.
        now: the clock.
    """

    def __init__(self, alone_s: float = ALONE_S, now: Callable[[], float] = time.monotonic) -> None:
        self._alone_s, self._now = alone_s, now
        self._until: float | None = None
        self._total_s = 0.0
        self._longest_s: dict[str, float] = {}

    def renew(self) -> None:
        """Begin another step, with its own time."""
        self._until, self._longest_s = None, {}

    @property
    def left_s(self) -> float:
        """The seconds that are left, at least 0."""
        if self._until is None:
            timeout_s = group_timeout_s()
            self._total_s = self._alone_s if timeout_s is None else SHARE * timeout_s
            self._until = self._now() + self._total_s
        return max(0.0, self._until - self._now())

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be begun."""
        return self.left_s <= 0.0

    def check(self) -> None:
        """Do nothing while there is time left.

        Raises:
            OutOfTime: not any more.
        """
        if self.is_over:
            raise OutOfTime(f"the {self._total_s:g} s for which one step may hold up the job are over")

    @contextlib.contextmanager
    def one(self, kind: str) -> Generator[None, None, None]:
        """Do one replay in this block, if the longest of its kind fits into the time that is left.

        Raises:
            OutOfTime: it was not begun.
        """
        self.check()
        longest_s = self._longest_s.get(kind, 0.0)
        if longest_s > self.left_s:
            raise OutOfTime(
                f"another replay ({longest_s:.1f} s) does not fit into the {self._total_s:g} s for which one step may "
                "hold up the job"
            )
        began = self._now()
        try:
            yield
        finally:
            self._longest_s[kind] = max(longest_s, self._now() - began)


def group_timeout_s() -> float | None:
    """Return the shortest timeout of the program's process groups in seconds; None: there is none, or it is unknown."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    found: list[float] = []
    world: Any = getattr(torch.distributed.distributed_c10d, "_world", None)
    for group in list(getattr(world, "pg_map", ())):
        for device in getattr(group, "_device_types", ()):
            with contextlib.suppress(Exception):  # not every backend tells
                found.append(group._get_backend(device).options._timeout.total_seconds())
    return min((each for each in found if each > 0.0), default=None)
