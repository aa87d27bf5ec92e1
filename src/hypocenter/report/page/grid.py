"""Readings laid out as a grid: sites in execution order down, steps across, the largest magnitude in each cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.bookkeeping import holds_values, is_bookkeeping
from hypocenter.nouns import PHASES

FLOATING = ("float", "bfloat", "complex")  # dtypes that can overflow to infinity begin with one of these
SCALARS = ("loss", "grad_norm", "local_norm", "loss_scale", "lr")  # sites that are numbers of a step, not tensors
COLUMNS = (
    "step", "site", "port", "call", "phase", "op", "source_line", "dtype", "order", "replay", "literal_inf",
    "n_nan", "n_posinf", "n_neginf", "n_hist", "absmax", "sumsq", "digest",
)  # fmt: skip
"""What a grid is made from; selecting these first spares copying histograms."""

UNINITIALISED = r"^aten\.(new_)?empty(_like|_strided)?\b"  # operators whose output is whatever the memory held

_KEY = ("site", "port", "call", "phase", "op", "source_line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the grid: a site's port in one of its calls, at level `ops` told apart by operator and line."""

    site: str
    port: str
    phase: str
    op: str
    dtype: str
    call: int = 0  # n-th call of the module within a micro-batch
    measure: str = "max"  # "norm" where only the L2 norm was recorded, as for gradients at level sentinel


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """`absmax[r, c]` is the largest finite magnitude of `rows[r]` at `steps[c]` over ranks, micro-batches and calls.

    NaN where nothing was recorded; +inf where a value was not finite.
    """

    rows: tuple[Row, ...]
    steps: tuple[int, ...]
    absmax: npt.NDArray[np.float64]


def grid_of(table: pa.Table, keep: frozenset[tuple[str, str]] = frozenset()) -> Grid:
    """Lay out the floating-point readings of `table`.

    Inputs and the terms of reductions are left out, being outputs of another site, except (site, port) pairs in `keep`.
    """
    table = table.select(COLUMNS)
    chosen = table.filter(_wanted(table, keep))
    if chosen.num_rows == 0:
        return Grid(rows=(), steps=(), absmax=np.empty((0, 0)))
    codes, firsts = _keys(chosen)
    steps, columns = np.unique(chosen["step"].to_numpy(), return_inverse=True)
    absmax = np.full((len(firsts), len(steps)), -1.0)
    np.maximum.at(absmax, (codes, columns), _magnitude(chosen))
    absmax[absmax < 0] = np.nan
    rank = _in_execution_order(codes, len(firsts), chosen)
    fields = {name: chosen[name].take(firsts).to_pylist() for name in ("site", "port", "call", "phase", "op", "dtype")}
    is_norm = np.ones(len(firsts), np.bool_)
    np.logical_and.at(is_norm, codes, _is_norm(chosen))
    rows = [
        Row(**{name: values[i] for name, values in fields.items()}, measure="norm" if is_norm[i] else "max")
        for i in range(len(firsts))
    ]
    return Grid(rows=tuple(rows[i] for i in rank), steps=tuple(int(s) for s in steps), absmax=absmax[rank])


def _wanted(table: pa.Table, keep: frozenset[tuple[str, str]]) -> pa.Array:
    floating = pc.match_substring_regex(table["dtype"], f"^({'|'.join(FLOATING)})")
    inputs = pc.match_substring_regex(table["port"], r"^(in|terms)\[")
    wanted = pc.and_(floating, pc.invert(inputs))
    wanted = pc.and_not(pc.and_(wanted, holds_values(table)), is_bookkeeping(table))
    wanted = pc.and_(wanted, pc.invert(pc.is_in(table["site"], pa.array(SCALARS))))
    wanted = pc.and_(wanted, pc.invert(pc.match_substring_regex(table["op"], UNINITIALISED)))
    of_scaler = pc.and_(pc.equal(table["phase"], "scaler"), pc.equal(table["port"], "value"))  # facts of the diary
    wanted = pc.and_(wanted, pc.invert(of_scaler))
    for site, port in keep:
        wanted = pc.or_(wanted, pc.and_(pc.equal(table["site"], site), pc.equal(table["port"], port)))
    return wanted


def _keys(table: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a number for each row's key, and the row where each key comes first."""
    codes = np.zeros(table.num_rows, np.int64)
    for name in _KEY:
        encoded = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        indices = encoded.indices.to_numpy()
        _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices, return_inverse=True)
    _, firsts = np.unique(codes, return_index=True)
    return codes, firsts


def _in_execution_order(codes: npt.NDArray[np.int64], n_keys: int, table: pa.Table) -> npt.NDArray[np.int64]:
    """Sort the keys by phase, and within one by their earliest order in any step and micro-batch."""
    order = np.full(n_keys, np.iinfo(np.int64).max)
    np.minimum.at(order, codes, table["order"].to_numpy())
    phase = np.zeros(n_keys, np.int64)
    phase[codes] = pc.index_in(table["phase"], value_set=pa.array(PHASES)).to_numpy()
    return np.lexsort((order, phase))


def _magnitude(table: pa.Table) -> npt.NDArray[np.float64]:
    bad = sum(table[name].to_numpy() for name in ("n_nan", "n_posinf", "n_neginf"))
    planned = table["literal_inf"].to_numpy(zero_copy_only=False) & (table["n_nan"].to_numpy() == 0)
    size = np.where(_is_norm(table), np.sqrt(table["sumsq"].to_numpy()), table["absmax"].to_numpy())
    return np.where((np.asarray(bad) > 0) & ~planned, np.inf, size)


def _is_norm(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell which readings hold the sum of squares alone: nothing was counted in them."""
    return (table["n_hist"].to_numpy() == 0) & (table["absmax"].to_numpy() == 0)
