"""Readings gathered per place: all those of one site, port and operator at one loss scale, as one Summary.

Counts, extremes and histograms are added up on columns: `summary.merge` says what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.diary import SCALED_GRAD
from hypocenter.formats import FORMATS
from hypocenter.nouns import StepRecord, Summary
from hypocenter.report.headroom.scales import carried_scales, is_scaled
from hypocenter.report.page.grid import UNINITIALISED

PHASES = ("forward", "param", "backward", "grad")
MOST = 1 << 50  # elements of one reading; sums of some thousand stay exact
LOWEST, HIGHEST = -1074, 1023  # binary exponents of float64
FLOATING = r"^(float|bfloat|complex)"

Known = Literal["values", "largest", "norm"]
"""What a recording holds of a place: histograms, the largest magnitude, or the L2 norm alone (level sentinel)."""

_KEY = ("phase", "site", "port", "op", "source_line", "dtype")
_COUNTS = ("n", "n_nan", "n_posinf", "n_neginf", "n_hist", "n_zero", "n_subnormal")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One place at one loss scale, over all selected steps, micro-batches and ranks."""

    phase: str
    site: str
    port: str
    op: str
    line: int  # of source; 0 when unknown
    source: str  # its text
    dtype: str
    carried: float  # the loss scale that the values contain
    recorded: float  # the loss scale of these steps; 1 without a scaler
    known: Known
    summary: Summary
    largest: float  # magnitude: of an element, or of the norm where only that is known
    rms: float  # largest root mean square of one reading
    step: int  # of the largest magnitude
    order: int
    n_steps: int
    n_nonfinite: int  # without infinities that are masks
    is_replay: bool

    @property
    def is_scaled(self) -> bool:
        """Whether a loss scale multiplies these values."""
        return is_scaled(self.phase, self.port)


def gather(table: pa.Table, records: Iterable[tuple[int, StepRecord]]) -> list[Gathered]:
    """Gather the floating-point readings of PHASES, in execution order.

    Inputs are left out (they are outputs of another site), so are recomputes. A phase whose values the run itself did
    not record is answered from the replay of a failed step, if there was one. The loss-scale diary's look at a
    gradient, which knows the largest element, counts as one of phase `grad`.
    """
    chosen = of_values(table)
    if chosen.num_rows == 0:
        return []
    carried, recorded = carried_scales(chosen, list(records))
    is_norm = _is_norm(chosen)
    codes, firsts = _codes(chosen, carried, is_norm)
    return _gathered(chosen, codes, firsts, carried, recorded, is_norm)


def of_values(table: pa.Table) -> pa.Table:
    """Return the rows that are answered from."""
    chosen = table.filter(_wanted(table))
    chosen = chosen.filter(pa.array(is_possible(chosen)))
    return chosen.filter(_own_or_replay(chosen))


def each_tensor(table: pa.Table) -> list[Summary]:
    """Return largest magnitude and histogram of each row, without masks made of a format's lowest number."""
    n = table.num_rows
    absmax, low, bins = _magnitudes(table, np.arange(n), n) if n else (np.zeros(0), 0, np.zeros((0, 1), np.int64))
    n_all, n_hist = _column(table, "n"), _column(table, "n_hist")
    return [
        Summary(n=int(n_all[i]), n_hist=int(n_hist[i]), absmax=float(absmax[i]), **_hist(bins[i], low))
        for i in range(n)
    ]


def _wanted(table: pa.Table) -> Any:
    of_diary = pc.and_(pc.equal(table["phase"], "scaler"), pc.equal(table["port"], SCALED_GRAD))
    wanted = pc.or_(pc.is_in(table["phase"], pa.array(PHASES)), of_diary)
    wanted = pc.and_(wanted, pc.match_substring_regex(table["dtype"], FLOATING))
    for left_out in (
        pc.or_(pc.starts_with(table["port"], "in["), pc.starts_with(table["port"], "terms[")),
        pc.and_(pc.equal(table["phase"], "grad"), pc.equal(table["port"], "value")),  # the grad norm, a number
        pc.match_substring_regex(table["op"], UNINITIALISED),
        table["recompute"],
    ):
        wanted = pc.and_(wanted, pc.invert(left_out))
    return wanted


def is_possible(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell which rows a tensor can have; a damaged file may hold others."""
    counts = [_column(table, name) for name in _COUNTS]
    n, n_hist, n_zero = (_column(table, name) for name in ("n", "n_hist", "n_zero"))
    absmax, sumsq = _column(table, "absmax"), _column(table, "sumsq")
    absmin = np.nan_to_num(_column(table, "absmin").astype(np.float64), nan=1.0, posinf=-1.0)
    hist = table["hist"].combine_chunks()
    lengths, values = pc.list_value_length(hist).to_numpy(), hist.flatten().to_numpy()
    rows = np.repeat(np.arange(table.num_rows), lengths)
    first, last = _column(table, "hist_first").astype(np.int64), np.maximum(lengths.astype(np.int64), 1) - 1
    usable = np.clip(values, 0, MOST)
    is_bad_bin = np.bincount(rows, weights=usable != values, minlength=table.num_rows) > 0
    n_binned = np.bincount(rows, weights=usable, minlength=table.num_rows)
    possible = np.all([(c >= 0) & (c <= MOST) for c in counts], axis=0) & (n_hist <= n) & (n_binned + n_zero <= n_hist)
    possible &= np.isfinite(absmax) & (absmax >= 0) & np.isfinite(sumsq) & (sumsq >= 0) & (absmin > 0) & ~is_bad_bin
    possible &= (n > 0) & ((n_binned == 0) | (absmax > 0)) & (sum(counts[1:4]) <= n)
    return possible & (first >= LOWEST) & (first + last <= HIGHEST)


def _own_or_replay(table: pa.Table) -> Any:
    """Select the run's own rows, and the replay's of a phase of which there are no own ones."""
    own = table.filter(pc.invert(table["replay"]))["phase"].unique()
    return pc.or_(pc.invert(table["replay"]), pc.invert(pc.is_in(table["phase"], own)))


def _is_norm(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell which readings hold the sum of squares alone."""
    return (_column(table, "n_hist") == 0) & (_column(table, "absmax") == 0) & (_column(table, "sumsq") > 0)


def _codes(table: pa.Table, carried: Floats, is_norm: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return a number per row for its place and scale, and the row where each number comes first."""
    codes = np.unique(carried, return_inverse=True)[1].astype(np.int64) * 2 + is_norm
    for name in _KEY:
        encoded = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        size = len(encoded.dictionary) + 1
        codes = np.unique(codes * size + encoded.indices.to_numpy(), return_inverse=True)[1].astype(np.int64)
    return codes, np.unique(codes, return_index=True)[1].astype(np.int64)


def _gathered(
    table: pa.Table, codes: Ints, firsts: Ints, carried: Floats, recorded: Floats, is_norm: npt.NDArray[np.bool_]
) -> list[Gathered]:
    n = len(firsts)
    counts = {name: _summed(codes, _column(table, name), n) for name in _COUNTS}
    absmax, low, bins = _magnitudes(table, codes, n)
    sumsq = _column(table, "sumsq")
    sizes = np.where(is_norm, np.sqrt(sumsq), absmax)
    worst = _last_largest(codes, sizes, n)
    masked = _is_mask_of_infinities(table)
    bad = sum(_column(table, name) for name in ("n_nan", "n_posinf", "n_neginf"))
    n_bad = _summed(codes, np.where(masked, 0, bad), n)
    finite = np.maximum(1, _column(table, "n") - bad)
    rms = _largest(codes, np.sqrt(sumsq / finite), n)
    order, steps = _smallest(codes, _column(table, "order"), n), _n_different(codes, _column(table, "step"), n)
    absmin = _smallest(codes, np.nan_to_num(_column(table, "absmin").astype(np.float64), nan=np.inf), n)
    total, squares = _summed(codes, np.nan_to_num(_column(table, "sum")), n), _summed(codes, sumsq, n)
    names = {name: table[name].take(firsts).to_pylist() for name in (*_KEY, "source_text", "replay")}
    for i in np.flatnonzero([phase == "scaler" for phase in names["phase"]]):  # the diary's look at a gradient
        names["phase"][i], names["port"][i] = "grad", "grad"
    step_of = _column(table, "step")
    found = [
        Gathered(
            phase=names["phase"][i],
            site=names["site"][i],
            port=names["port"][i],
            op=names["op"][i],
            line=names["source_line"][i] or 0,
            source=names["source_text"][i] or "",
            dtype=names["dtype"][i],
            carried=float(carried[firsts[i]]),
            recorded=float(recorded[firsts[i]]),
            known="norm" if is_norm[firsts[i]] else "values" if counts["n_hist"][i] else "largest",
            summary=Summary(
                **{name: int(values[i]) for name, values in counts.items()},
                absmin=float(absmin[i]) if np.isfinite(absmin[i]) else None,
                absmax=float(absmax[worst[i]]),
                sum=float(total[i]),
                sumsq=float(squares[i]),
                **_hist(bins[i], low),
            ),
            largest=float(sizes[worst[i]]),
            rms=float(rms[i]),
            step=int(step_of[worst[i]]),
            order=int(order[i]),
            n_steps=int(steps[i]),
            n_nonfinite=int(n_bad[i]),
            is_replay=bool(names["replay"][i]),
        )
        for i in range(n)
    ]
    return sorted(found, key=lambda g: (PHASES.index(g.phase), g.order))


def _magnitudes(table: pa.Table, codes: Ints, n: int) -> tuple[Floats, int, Ints]:
    """Return |max| per row, the first exponent, and exponent counts per place, without masks of lowest numbers."""
    absmax = _column(table, "absmax")
    lists = table["hist"].combine_chunks()
    lengths, values = pc.list_value_length(lists).to_numpy(), lists.flatten().to_numpy()
    rows = np.repeat(np.arange(table.num_rows), lengths)
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    exponents = np.arange(len(rows)) - begins + _column(table, "hist_first")[rows].astype(np.int64)
    is_mask = _is_lowest_number(table)
    if is_mask.any():
        top = np.floor(np.log2(np.where(is_mask, absmax, 1.0)))
        keep = ~(is_mask[rows] & (exponents >= top[rows]))
        rows, exponents, values = rows[keep], exponents[keep], values[keep]
        highest = np.full(table.num_rows, -np.inf)
        np.maximum.at(highest, rows, np.where(values > 0, exponents, -np.inf))
        rest = np.maximum(np.nan_to_num(_column(table, "max"), nan=0.0), np.exp2(highest))
        absmax = np.where(is_mask, np.clip(rest, 0.0, absmax), absmax)
    low = int(exponents.min()) if len(exponents) else 0
    width = int(exponents.max()) - low + 1 if len(exponents) else 1
    flat = np.bincount(codes[rows] * width + (exponents - low), weights=values, minlength=n * width)
    return absmax, low, flat.astype(np.int64).reshape(n, width)


def _is_lowest_number(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell which rows have the lowest number of their format as minimum: masks by `torch.finfo(dtype).min`."""
    lowest = np.full(table.num_rows, np.nan)
    for name, form in FORMATS.items():
        lowest[pc.equal(table["dtype"], name).to_numpy(zero_copy_only=False)] = -form.max
    return (_column(table, "min") == lowest) & (_column(table, "absmax") == -lowest)


def _is_mask_of_infinities(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell which rows have infinities that the program wrote, or only -inf in forward: attention masks."""
    literal = table["literal_inf"].to_numpy(zero_copy_only=False)
    forward = pc.equal(table["phase"], "forward").to_numpy(zero_copy_only=False)
    only_negative = (_column(table, "n_posinf") == 0) & (_column(table, "n_neginf") > 0)
    return (literal | (forward & only_negative)) & (_column(table, "n_nan") == 0)


def _hist(counts: Ints, low: int) -> dict[str, Any]:
    used = np.flatnonzero(counts)
    if not len(used):
        return {}
    first, last = int(used[0]), int(used[-1])
    return {"hist_first": low + first, "hist": tuple(counts[first : last + 1].tolist())}


def _column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy()


def _summed(codes: Ints, values: Any, n: int) -> Any:
    total = np.zeros(n, values.dtype if values.dtype.kind == "f" else np.int64)
    np.add.at(total, codes, values)
    return np.clip(total, -np.finfo(np.float64).max, np.finfo(np.float64).max) if total.dtype.kind == "f" else total


def _largest(codes: Ints, values: Any, n: int) -> Any:
    found = np.zeros(n)
    np.maximum.at(found, codes, values)
    return found


def _smallest(codes: Ints, values: Any, n: int) -> Any:
    found = np.full(n, np.inf)
    np.minimum.at(found, codes, values)
    return found


def _last_largest(codes: Ints, values: Any, n: int) -> Ints:
    """Return the row of the largest value of each code, the first of equals."""
    found = np.zeros(n, np.int64)
    order = np.lexsort((-np.arange(len(codes)), values, codes))
    found[codes[order]] = order  # the last one written is the largest
    return found


def _n_different(codes: Ints, steps: Any, n: int) -> Ints:
    pairs = np.unique(np.stack([codes, steps.astype(np.int64)]), axis=1)
    return np.bincount(pairs[0], minlength=n)
