"""What is left of steps long past: windows of 100 steps or more, each row of them the sum of many.

A window is the monoid's: windows of parts merge into those of the whole, whatever the parts were. It describes *all*
its steps, those too whose rows are still there. It is no step: no rule sees one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from hypocenter.record.schema import STEPS

WIDTH = 100  # steps of a window
WIDE = 10_000  # and of one of those that are older still
OF_RECORDS = "step"  # phase of a window over numbers of step records, whose names are its site

_KEYS = ("phase", "site", "port", "dtype")
_SUMS = ("n_rows", "n", "n_nan", "n_posinf", "n_neginf", "n_hist", "n_zero", "n_subnormal", "n_sized")
_COUNTS = _SUMS[1:-1]
_RECORDED = ("loss", "grad_norm", "loss_scale", "lr", "step_ms", "tap_ms", "n_bad_grads", "skipped", "n_microbatches")

WINDOWS = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in ("step", "last_step", "width")),
        *(pa.field(name, pa.string(), nullable=False) for name in _KEYS),
        *(pa.field(name, pa.int64(), nullable=False) for name in _SUMS),
        *(pa.field(name, pa.float64()) for name in ("min", "max", "absmin")),
        *(pa.field(name, pa.float64(), nullable=False) for name in ("absmax", "sum", "sumsq", "total")),
        *(pa.field(name, pa.float64()) for name in ("least", "most")),
        *(pa.field(name, pa.int64()) for name in ("least_step", "most_step", "digest")),
    ]
)
"""Columns of a window: docs/format.md."""

WINDOW_READS = ("step", *_KEYS, *_COUNTS, "min", "max", "absmin", "absmax", "sum", "sumsq", "digest")
"""Columns of READINGS that a window is made from."""


def of_readings(table: pa.Table | pa.RecordBatch, width: int = WIDTH) -> pa.Table:
    """Return the windows of readings, which have at least the columns WINDOW_READS."""
    real = _real(table)
    bad = sum(np.asarray(table[name]) for name in ("n_nan", "n_posinf", "n_neginf"))
    is_value = _is_text(table, "port", "value")
    size = np.where(is_value, real("sum"), np.sqrt(real("sumsq")))
    has_size = (np.asarray(table["n"]) > 0) & (bad == 0)
    step = np.asarray(table["step"])
    columns: dict[str, Any] = {name: np.asarray(table[name]) for name in _COUNTS}
    columns |= {name: real(name) for name in ("min", "max", "absmin", "absmax", "sum", "sumsq")}
    digest = table["digest"].combine_chunks() if isinstance(table, pa.Table) else table["digest"]
    columns["has_digest"] = digest.is_valid().to_numpy(zero_copy_only=False)
    mixed = _mixed(digest.fill_null(0).to_numpy(zero_copy_only=False), step)
    columns["digest"] = np.where(columns["has_digest"], mixed, 0)
    return _merged(_keys(table), step, _sized(columns, size, has_size, step), width)


def of_steps(table: pa.Table | pa.RecordBatch, width: int = WIDTH) -> pa.Table:
    """Return the windows of step records: one row for each of their numbers, phase `step`."""
    return merge([_of_record(table, name, width) for name in _RECORDED], width)


def merge(tables: list[pa.Table], width: int) -> pa.Table:
    """Merge windows; those that are narrower than `width` become as wide."""
    table = pa.concat_tables([WINDOWS.empty_table(), *tables])
    if not table.num_rows:
        return table
    columns: dict[str, Any] = {name: np.asarray(table[name]) for name in (*_SUMS, "last_step", "width")}
    real = _real(table)
    columns |= {name: real(name) for name in ("min", "max", "absmin", "absmax", "sum", "sumsq", "total")}
    columns |= {name: real(name) for name in ("least", "most")}
    for name in ("least_step", "most_step", "digest"):
        columns[name] = table[name].combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
    columns["has_digest"] = table["digest"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    return _merged(_keys(table), np.asarray(table["step"]), columns, width)


def _of_record(table: pa.Table | pa.RecordBatch, name: str, width: int) -> pa.Table:
    array = table[name].cast(pa.float64()) if STEPS.field(name).type != pa.bool_() else table[name].cast(pa.int8())
    chunk = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    is_there = chunk.is_valid().to_numpy(zero_copy_only=False)
    value = chunk.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    if not is_there.any():
        return WINDOWS.empty_table()
    step, value = np.asarray(table["step"])[is_there], value[is_there]
    is_finite = np.isfinite(value)
    finite, there = np.where(is_finite, value, 0.0), np.where(is_finite, value, np.nan)
    count = is_finite.astype(np.int64)
    columns = {
        "n": np.ones_like(step), "n_nan": np.isnan(value).astype(np.int64),
        "n_posinf": (value == np.inf).astype(np.int64), "n_neginf": (value == -np.inf).astype(np.int64),
        "n_hist": count, "n_zero": count * (value == 0), "n_subnormal": np.zeros_like(step),
        "min": there, "max": there, "absmin": np.where(value == 0, np.nan, np.abs(there)),
        "absmax": np.abs(finite), "sum": finite, "sumsq": np.square(finite),
        "digest": np.zeros_like(step), "has_digest": np.zeros(len(step), bool),
    }  # fmt: skip
    texts = {key: pa.array([word]).dictionary_encode() for key, word in
             zip(_KEYS, (OF_RECORDS, name, "record", ""), strict=True)}  # fmt: skip
    keys = {key: (np.zeros(len(step), np.int64), encoded.dictionary) for key, encoded in texts.items()}
    return _merged(keys, step, _sized(columns, value, is_finite, step), width)


def _sized(columns: dict[str, Any], size: np.ndarray, has_size: np.ndarray, step: np.ndarray) -> dict[str, Any]:
    """Add what a window says of its rows' sizes: how many, their sum, the least and the most and where."""
    there = np.where(has_size, size, np.nan)
    return columns | {
        "n_rows": np.ones_like(step), "n_sized": has_size.astype(np.int64), "total": np.where(has_size, size, 0.0),
        "least": there, "most": there, "least_step": step, "most_step": step, "last_step": step,
        "width": np.zeros_like(step),
    }  # fmt: skip


_Keys = dict[str, tuple[np.ndarray, Any]]


def _keys(table: pa.Table | pa.RecordBatch) -> _Keys:
    """Return for each key its number in each row, and the texts that the numbers stand for."""
    found: _Keys = {}
    for name in _KEYS:
        array = table[name].combine_chunks() if isinstance(table, pa.Table) else table[name]
        encoded = array.dictionary_encode()
        found[name] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary
    return found


def _merged(keys: _Keys, step: np.ndarray, columns: dict[str, Any], width: int) -> pa.Table:
    """Return one row for each window and key."""
    if not len(step):
        return WINDOWS.empty_table()
    code = np.zeros(len(step), np.int64)
    for indices, texts in keys.values():
        code = code * max(1, len(texts)) + indices
    widths = np.maximum(columns["width"], width)
    order = np.lexsort((step, step // widths, widths, code))
    ordered = np.stack([code[order], widths[order], (step // widths)[order]])
    is_first = np.append(True, np.any(ordered[:, 1:] != ordered[:, :-1], axis=0))
    starts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1

    def over(how: Any, values: np.ndarray) -> np.ndarray:
        return how.reduceat(values[order], starts)

    with np.errstate(invalid="ignore", over="ignore"):
        found: dict[str, Any] = {
            "step": step[order][starts], "last_step": over(np.maximum, columns["last_step"]),
            "width": widths[order][starts],
            **{name: over(np.add, columns[name]) for name in _SUMS},
            **{name: over(np.add, columns[name]) for name in ("sum", "sumsq", "total")},
            "absmax": over(np.maximum, columns["absmax"]),
            "min": over(np.fmin, columns["min"]), "absmin": over(np.fmin, columns["absmin"]),
            "max": over(np.fmax, columns["max"]),
        }  # fmt: skip
        found |= _extremes(columns, order, group, starts)
        limit = np.finfo(np.float64).max
        found |= {name: np.clip(found[name], -limit, limit) for name in ("sum", "sumsq", "total")}
        digest = over(np.add, columns["digest"].astype(np.uint64)).astype(np.int64)
    has_digest = over(np.logical_or, columns["has_digest"])
    found["digest"] = pa.array(digest, mask=~has_digest)
    arrays: list[Any] = []
    for field in WINDOWS:
        if field.name in keys:
            indices, texts = keys[field.name]
            arrays.append(texts.take(pa.array(indices[order][starts])).cast(pa.string()))
        elif isinstance(found[field.name], np.ndarray):
            arrays.append(pa.array(found[field.name], field.type, from_pandas=field.nullable))
        else:
            arrays.append(found[field.name])
    return pa.Table.from_arrays(arrays, schema=WINDOWS)


def _extremes(columns: dict[str, Any], order: np.ndarray, group: np.ndarray, starts: np.ndarray) -> dict[str, Any]:
    """Return the least and the most size of each group, and at which step; of equal ones the first."""
    found: dict[str, Any] = {}
    for name, sign in (("least", 1.0), ("most", -1.0)):
        size, at = columns[name][order], columns[f"{name}_step"][order]
        is_there = ~np.isnan(size)
        first = np.lexsort((at, np.where(is_there, sign * size, np.inf), group))[starts]  # groups keep their places
        found[name] = np.where(is_there[first], size[first], np.nan)
        found[f"{name}_step"] = pa.array(at[first], mask=~is_there[first])
    return found


def _real(table: pa.Table | pa.RecordBatch) -> Callable[[str], np.ndarray]:
    """Return a function that gives a column of numbers, with NaN where there is none."""

    def column(name: str) -> np.ndarray:
        array = table[name].combine_chunks() if isinstance(table, pa.Table) else table[name]
        return array.to_numpy(zero_copy_only=False)

    return column


def _is_text(table: pa.Table | pa.RecordBatch, name: str, text: str) -> np.ndarray:
    indices, texts = _keys(table)[name]
    return np.array([each == text for each in texts.to_pylist()] or [False], bool)[indices]


def _mixed(digest: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Mix its step into each digest (splitmix64's finish), so that a sum tells which digest was of which step."""
    mixed = digest.astype(np.uint64) ^ (step.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).astype(np.int64)
