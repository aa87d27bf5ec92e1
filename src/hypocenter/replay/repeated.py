"""An op executed again and again: one that does not always give the same bits accuses nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hypocenter.diagnose.evidence import Rerun
from hypocenter.repetition import ENOUGH, LEAST

SECONDS = 1.0  # beyond the least
T = TypeVar("T")


def repeated(
    found: Rerun, again: Callable[[], T | None], equal: Callable[[T, T], bool], first: T, original: T
) -> Rerun:
    """Execute an op until it gives something else than the first time, or often enough; return what came of it.

    Args:
        found: what came of the first time.
        again: executes the op; None: it gave nothing.
        equal: whether two results have the same bits.
        first: what it gave the first time.
        original: what it gave in the run.
    """
    started, n_runs = time.perf_counter(), 1
    while n_runs < LEAST or (n_runs < ENOUGH and time.perf_counter() - started < SECONDS):
        result = again()
        n_runs += 1
        if result is None or not equal(result, first):
            is_original = result is not None and equal(result, original)
            return replace(found, n_runs=n_runs, repeats=False, equal_bits=is_original)
    return replace(found, n_runs=n_runs)
