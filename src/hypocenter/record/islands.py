"""Which steps stay whole when those around them are rolled up: where something was out of the ordinary.

Every rank says so by the name of an empty file in `RUN/kept`: by the time that its steps are rolled up, the others' are
there too, so that what happened at a step can still be compared over the ranks. One listing tells all; no file is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BEFORE, AFTER = 64, 16  # steps around: rules look back at 64 readings of a site, and at 32 values of a series
LONGEST = 256  # steps of one island: what goes on for longer is whole where it begins
JUMP = 2.0  # times the median of the values before: what a jump is at least (detect/spikes.py)
MOST = {"bad": 512, "odd": 128}  # islands that a rank asks for
_JUMPS_A_SEGMENT = 4
_PAST = 32
_NAME = re.compile(r"(\d{1,18})-(\d{1,18})")
EVENT_READS = ("step", "phase", "site", "op", "replay", "literal_inf", "n_nan", "n_posinf", "n_neginf")
"""Columns of READINGS that tell what is out of the ordinary."""

Island = tuple[int, int]  # first and last step


@dataclass(slots=True, kw_only=True)
class Islands:
    """The islands of steps that this rank has asked to keep whole.

    Args:
        folder: `RUN/kept`.
    """

    folder: Path
    n_asked: dict[str, int] = field(default_factory=dict[str, int])

    def ask(self, steps: Iterable[int], how: str) -> None:
        """Ask to keep these steps and what is around them. Raises OSError.

        Args:
            steps: in any order.
            how: `bad` or `odd`: of the second fewer are kept.
        """
        known = self.listed()
        for first, last in around(steps):
            if any(a <= first and last <= b for a, b in known):
                continue
            n = self.n_asked.get(how, 0)
            if n >= MOST[how]:
                return
            self.n_asked[how] = n + 1
            self.folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.folder / f"{first}-{last}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))

    def listed(self) -> list[Island]:
        """Return the islands that any rank has asked for, in rising order. Raises OSError."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted((int(m[1]), int(m[2])) for name in names if (m := _NAME.fullmatch(name)))


def around(steps: Iterable[int]) -> list[Island]:
    """Return islands around steps: those that touch are joined to one, of at most LONGEST steps."""
    found: list[list[int]] = []
    for step in sorted(set(steps)):
        first, last = max(0, step - BEFORE), step + AFTER
        if found and first <= found[-1][1] + 1:
            found[-1][1] = last
        else:
            found.append([first, last])
    return [(first, min(last, first + LONGEST - 1)) for first, last in found]


def within(islands: Sequence[Island], steps: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return which of these steps lie on an island."""
    at = np.asarray(steps)
    if not islands:
        return pa.array(np.zeros(len(at), bool))
    edges = np.zeros(len(islands) * 2, np.int64)
    merged: list[list[int]] = []
    for first, last in sorted(islands):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    edges = np.array([edge for first, last in merged for edge in (first, last + 1)], np.int64)
    return pa.array(np.searchsorted(edges, at, side="right") % 2 == 1)


def bad_steps(steps: pa.Table) -> set[int]:
    """Return the steps whose records say that something was wrong."""
    if not steps.num_rows:
        return set()
    is_bad = pc.or_(pc.not_equal(steps["finding"], ""), pc.greater(steps["n_bad_grads"], 0))
    for name in ("loss", "grad_norm"):
        is_bad = pc.or_(is_bad, pc.fill_null(pc.invert(pc.is_finite(steps[name])), False))
    return set(steps.filter(pc.and_not(is_bad, _is_routine(steps)))["step"].to_pylist())


def bad_in(events: pa.RecordBatch, skipped: pa.Array) -> set[int]:
    """Return steps with readings of what should not be, or of a step that was done again.

    Args:
        events: the columns EVENT_READS.
        skipped: steps of which bad gradients tell nothing new.
    """
    n_bad = pc.add(pc.add(events["n_nan"], events["n_posinf"]), events["n_neginf"])
    is_bad = pc.and_not(pc.greater(n_bad, 0), pc.or_(events["literal_inf"], pc.is_in(events["step"], skipped)))
    again = pc.and_(events["replay"], pc.not_equal(events["op"], "health"))
    told = pc.or_(pc.starts_with(events["site"], "misuse."), pc.equal(events["site"], "sdc"))
    return set(pc.unique(events["step"].filter(pc.or_(is_bad, pc.or_(again, told)))).to_pylist())


def odd_steps(steps: pa.Table) -> set[int]:
    """Return steps that the loss scaler skipped or changed its scale at, or whose loss or norm jumps."""
    if not steps.num_rows:
        return set()
    at = np.asarray(steps["step"])
    found = set(at[np.asarray(steps["skipped"])].tolist())
    scale = steps["loss_scale"].to_numpy()
    with np.errstate(invalid="ignore"):
        found.update(at[1:][(scale[1:] != scale[:-1]) & ~np.isnan(scale[1:]) & ~np.isnan(scale[:-1])].tolist())
    for name in ("loss", "grad_norm"):
        found.update(_jumps(at, np.abs(steps[name].to_numpy())))
    return found


def _jumps(at: np.ndarray, value: np.ndarray) -> list[int]:
    """Return the few steps at which a series lies furthest above the median of the values before."""
    is_there = np.isfinite(value) & (value > 0)
    at, value = at[is_there], value[is_there]
    if len(value) <= _PAST:
        return []
    usual = np.median(np.lib.stride_tricks.sliding_window_view(value[:-1], _PAST), axis=1)
    ratio = value[_PAST:] / usual
    highest = np.argsort(ratio)[::-1][:_JUMPS_A_SEGMENT]
    return [int(at[_PAST + i]) for i in highest if ratio[i] > JUMP]


def _is_routine(steps: pa.Table) -> pa.ChunkedArray:
    """Tell which steps the scaler skipped with a finite loss and no finding, as is normal now and then."""
    finite = pc.fill_null(pc.is_finite(steps["loss"]), True)
    return pc.and_(pc.and_(steps["skipped"], pc.equal(steps["finding"], "")), finite)


def skipped_steps(steps: pa.Table) -> pa.Array:
    """Return the steps that the loss scaler skipped as it normally does."""
    return steps.filter(_is_routine(steps))["step"].combine_chunks() if steps.num_rows else pa.array([], pa.int64())
