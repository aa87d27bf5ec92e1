"""What rows of a recording hold at all: values, and values that are not finite."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose.panels import arrow
from hypocenter.record.reader import RecordedRun


def bad_steps(recorded: RecordedRun) -> Any:
    """Return steps of an imported run with something not finite: all their rows are wanted, to follow it."""
    found = [pc.unique(table["step"]) for _, table in recorded.scan(_is_nonfinite) if table.num_rows]
    return pc.unique(pa.concat_arrays(found)) if found else pa.array([], pa.int64())


def _is_nonfinite(table: Any) -> Any:
    return pc.greater(pc.add(pc.add(table["n_nan"], table["n_posinf"]), table["n_neginf"]), arrow(0))


def holds_values(recorded: RecordedRun) -> bool:
    """Return whether any reading tells of values: imported runs may hold names or checksums alone."""
    return any(table.num_rows for _, table in recorded.scan(_tells))


def _tells(table: Any) -> Any:
    found: Any = pc.is_valid(table["min"])
    for name in ("n_nan", "n_posinf", "n_neginf"):
        found = pc.or_(found, pc.greater(table[name], arrow(0)))
    return found
