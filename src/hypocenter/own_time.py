"""How long this process has worked: what may be looked at does not depend on what else the machine does.

What a look may cost is counted in seconds. By the wall clock, eight jobs on two cores make each look four times as
dear, and less is looked at. So what counts is the time that all threads of this process were given, but no more than
has passed, and no less than an eighth of it: who waits for a device or for other ranks works without a processor.
"""

from __future__ import annotations

import time

_LEAST = 1 / 8  # of what has passed


class OwnTime:
    """A clock that runs as long as its process works."""

    def __init__(self) -> None:
        self._own_s = 0.0
        self._read_s = time.perf_counter(), time.process_time()  # at the last look

    def now(self) -> float:
        """Return seconds since the clock was made."""
        passed_s, worked_s = self._read_s
        self._read_s = wall_s, process_s = time.perf_counter(), time.process_time()
        passed_s = wall_s - passed_s
        self._own_s += min(passed_s, max(process_s - worked_s, _LEAST * passed_s))  # a fork begins at 0 again
        return self._own_s


now = OwnTime().now
