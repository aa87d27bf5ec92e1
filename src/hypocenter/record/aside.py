"""A sink that works in a thread of its own: what it is given waits in a queue, and training goes on.

A back-end that is down, slow or hangs costs training nothing but that queue. What fails there is raised at the next
call, so whoever holds the sink takes it out.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from hypocenter.nouns import Finding, Reading, StepRecord

INTERVAL_S = 1.0  # between two looks at the queue: waking for each step would take the interpreter from training
PATIENCE_S = 60.0  # longest that one turn may take
PATIENCE_AT_END_S = 10.0  # longest that the end of training waits
MOST_WAITING = 100_000  # rows and steps: some hundred megabytes


class Patient(Protocol):
    """What works in the thread; it is called from there alone, one call at a time."""

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Take one step."""
        ...

    def finding(self, finding: Finding) -> None:
        """Take one finding."""
        ...

    def flush(self) -> None:
        """Send what was taken; called at the end of each turn of work."""
        ...

    def close(self) -> None:
        """End; called once, after a last turn of work."""
        ...


class Aside:
    """A sink (`hypocenter.record.catalogue.Sink`) that hands all it is given to another, in a thread.

    In a forked child every method does nothing: the thread belongs to the parent.

    Args:
        inner: does the work.
        interval_s: between two turns of the thread.
        patience_s: longest that a turn may take before the next call raises.
        patience_at_end_s: longest that `settle` and `close` wait.
    """

    def __init__(
        self,
        inner: Patient,
        *,
        interval_s: float = INTERVAL_S,
        patience_s: float = PATIENCE_S,
        patience_at_end_s: float = PATIENCE_AT_END_S,
    ) -> None:
        self._inner, self._interval_s = inner, interval_s
        self._patience_s, self._patience_at_end_s = patience_s, patience_at_end_s
        self._pid = os.getpid()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._n_taken, self._n_done = 0, 0  # rows and steps; each is counted by one thread alone
        self._turn_began: float | None = None  # monotonic
        self._error: Exception | None = None
        self._is_ending = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Hand over one step, to be taken in the thread.

        Raises:
            Exception: what the work has failed with since the last call; or it is too slow.
        """
        self._take(1 + len(readings), lambda: self._inner.write(readings, step))

    def finding(self, finding: Finding) -> None:
        """Hand over one finding, to be taken soon; raises as `write` does."""
        self._take(1, lambda: self._inner.finding(finding))
        self._wake.set()

    def settle(self) -> None:
        """Wait until all that was given is sent; raises as `write` does."""
        self._take(0, lambda: None)
        self._wake.set()
        until = time.monotonic() + self._patience_at_end_s
        while self._waiting or self._turn_began is not None:
            self._raise_failure()
            if time.monotonic() > until:
                raise TimeoutError(f"no answer for {self._patience_at_end_s:g} s")
            time.sleep(0.005)

    def close(self) -> None:
        """Have all sent and the inner sink closed; raises as `write` does. What does not end in time is left alone."""
        if os.getpid() != self._pid or self._is_ending:
            return
        self._raise_failure()
        if self._thread is None:
            self._inner.close()
            return
        self._is_ending = True
        self._wake.set()
        self._thread.join(self._patience_at_end_s)
        self._raise_failure()
        if self._thread.is_alive():
            raise TimeoutError(f"no answer for {self._patience_at_end_s:g} s")

    def _take(self, size: int, act: Callable[[], None]) -> None:
        if os.getpid() != self._pid or self._is_ending:
            return
        self._raise_failure()
        began = self._turn_began
        if began is not None and time.monotonic() - began > self._patience_s:
            raise TimeoutError(f"no answer for {self._patience_s:g} s")
        n_waiting = self._n_taken - self._n_done
        if n_waiting > MOST_WAITING:
            raise TimeoutError(f"too slow: {n_waiting:,} rows are waiting")
        self._n_taken += size
        self._waiting.append((size, act))
        if n_waiting + size > MOST_WAITING // 8:  # much comes at a time: its turn is now
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hypocenter-sink", daemon=True)
            self._thread.start()

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._is_ending:
                self._wake.wait(self._interval_s)
                self._wake.clear()
                self._turn()
            self._turn()
            self._inner.close()
        except BaseException as error:  # a library may end its thread: training is told, and goes on
            self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))

    def _turn(self) -> None:
        if not self._waiting:
            return
        self._turn_began = time.monotonic()
        while self._waiting:
            size, act = self._waiting.popleft()
            act()
            self._n_done += size
        self._inner.flush()
        self._turn_began = None
