"""Reductions whose result grows with a length: from which length on they overflow, at level `ops`.

A row of port `terms[i]` holds what such an operator added up, the row `out[0]` (or `grad_in[0]`) after it the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.formats import Format
from hypocenter.nouns import Reading, StepRecord, Summary, replace
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.report.headroom.gather import is_possible
from hypocenter.report.headroom.scales import is_scaled
from hypocenter.summary.reductions import (
    Bound,
    Critical,
    critical_growth,
    critical_norm,
    critical_power,
    critical_product,
    critical_sum,
)

NEAR = 64.0  # times its present length (6 bits) within which a reduction is near its limit
NEAR_SQUARED = 8.0  # the same of |x|: 6 bits of its square
MOST_READINGS = 50_000  # that are looked at, the last ones: a step of a large model has some thousands

SUMS = frozenset({"sum", "nansum", "cumsum"})
MEANS = frozenset({"mean", "nanmean"})
NORMS = frozenset({"norm", "linalg_vector_norm"})
VARIANCES = frozenset({"var", "var_mean", "std", "std_mean"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One operator at the reading where it is nearest to its limit."""

    phase: str
    site: str
    op: str
    source: str
    line: int
    step: int
    dtype: str
    of: str  # what grows: "terms", "|x|", "head dimension"
    present: float | None  # how much of it there is now; None where the recording does not tell
    critical: float  # from where on it overflows
    bound: Bound
    typical: float  # magnitude of a term: mean|x|, rms, or the largest product
    never_below: float  # the size below which it cannot overflow, where that is known; 0 where it is not
    is_in_accumulator: bool  # only if partial sums are kept in the format: most kernels keep them in float32

    @property
    def share(self) -> float:
        """The present size as a share of the limit: 1 at the limit; 0 when the present size is not known."""
        return self.present / self.critical if self.present is not None else 0.0

    def sentence(self, form: Format) -> str:
        """Say e.g. `4,096 terms of mean |x| 10 are added; in float16 it overflows from about 6,550 terms on`."""
        now = "" if self.present is None else f" (now {_count(self.present)})"
        size = _count(self.critical)
        inside = ", if partial sums are kept in it" if self.is_in_accumulator else ""
        if self.of == "|x|":
            return f"the square overflows {form.name} from |x| {size} on{now}{inside}"
        if self.critical < 1.0:
            return f"in {form.name} a single term overflows it{now}"
        amount = f"{size} {self.of}" if self.of == "terms" else f"an {self.of} of {size}"
        if self.bound == "not before":
            return f"in {form.name} it cannot overflow below {amount}{now}{inside}"
        how = " if it grows in proportion" if self.bound == "in proportion" else ""
        surely = f"; never below {_count(self.never_below)}" if self.never_below >= 1.0 else ""
        return f"in {form.name} it overflows from about {amount} on{how}{now}{surely}{inside}"


def reductions_of(
    table: pa.Table, records: Iterable[tuple[int, StepRecord]], form: Format, scale: float | None, phases: Sequence[str]
) -> tuple[Reduction, ...]:
    """Return the reductions near their limit, nearest first; a loss scale multiplies those of backward."""
    if not pc.any(pc.starts_with(table["port"], "terms[")).as_py():
        return ()
    ops = table.filter(pc.and_(pc.invert(pc.equal(table["op"], "")), pc.is_in(table["phase"], pa.array(list(phases)))))
    ops = ops.filter(pa.array(is_possible(ops)))
    ops = ops.sort_by([(name, "ascending") for name in ("rank", "step", "microbatch", "replay", "order")])
    scales = {(rank, r.step): r.loss_scale for rank, r in records if r.loss_scale}
    nearest: dict[tuple[str, str, str, int, str], Reduction] = {}
    for rank, terms, out in _calls(ops):
        factor = 1.0
        if is_scaled(out.phase, out.port) and scale is not None:
            factor = scale / scales.get((rank, out.step), 1.0)
        for found in _judged(terms, out, form, factor):
            key = (found.phase, found.site, found.op, found.line, found.of)
            if key not in nearest or found.share > nearest[key].share:
                nearest[key] = found
    near = [r for r in nearest.values() if _is_near(r)]
    return tuple(sorted(near, key=lambda r: -r.share))


def _is_near(found: Reduction) -> bool:
    """Return whether it is near its limit; of sums inside kernels (float32 as a rule) only if they overflow now."""
    if found.is_in_accumulator:
        return found.share >= 1.0
    return found.share * (NEAR_SQUARED if found.of == "|x|" else NEAR) >= 1.0


def _calls(ops: pa.Table) -> Iterator[tuple[int, list[Reading], Reading]]:
    """Yield the rank, terms and first result of each executed reduction."""
    first = max(0, ops.num_rows - MOST_READINGS)
    cut = ops.slice(first)
    pending: list[Reading] = []
    for rank, reading in zip(cut["rank"].to_pylist(), readings_from(cut.select(READINGS.names)), strict=True):
        if reading.port.startswith("terms["):
            pending = [*(p for p in pending if p.op == reading.op and reading.port != "terms[0]"), reading]
        elif pending and reading.op == pending[0].op:
            yield rank, pending, reading
            pending = []


def _judged(terms: Sequence[Reading], out: Reading, form: Format, factor: float) -> Iterator[Reduction]:
    op = out.op.split(".")[1] if out.op.count(".") > 1 else out.op
    x = _scaled(terms[0].summary, factor)
    n_terms = terms[0].summary.n / max(1, math.prod(out.shape)) if out.shape != terms[0].shape else None
    if op in SUMS or op in MEANS:
        length = float(max(terms[0].shape, default=1)) if op == "cumsum" else n_terms
        yield _reduction(out, "terms", length, critical_sum(x, form), is_in_accumulator=op in MEANS)
    elif op in NORMS:
        yield _reduction(out, "terms", n_terms, critical_norm(x, form))
        yield _reduction(out, "|x|", x.absmax, critical_power(2.0, form), is_in_accumulator=True)
    elif op in VARIANCES:
        yield _reduction(out, "|x|", x.absmax, critical_power(2.0, form), is_in_accumulator=True)
    elif op == "pow" or op == "square":
        if _is_square(x, _scaled(out.summary, factor * factor)):
            yield _reduction(out, "|x|", x.absmax, critical_power(2.0, form))
    elif len(terms) > 1 and terms[0].shape and out.summary.absmax and not out.summary.n_nonfinite:
        dimension = float(terms[0].shape[-1])
        grown = critical_growth(dimension, out.summary.absmax * factor, form)
        least = critical_product(x, terms[1].summary, form).size
        yield _reduction(out, "inner dimension", dimension, grown, never_below=least)


def _reduction(
    out: Reading,
    of: str,
    present: float | None,
    critical: Critical,
    *,
    is_in_accumulator: bool = False,
    never_below: float = 0.0,
) -> Reduction:
    return Reduction(
        phase=out.phase,
        site=out.site,
        op=out.op,
        source=out.source.text if out.source is not None else "",
        line=out.source.line if out.source is not None else 0,
        step=out.step,
        dtype=out.dtype,
        of=of,
        present=present,
        critical=critical.size,
        bound=critical.bound,
        typical=critical.typical,
        never_below=critical.size if critical.bound == "not before" else never_below,
        is_in_accumulator=is_in_accumulator,
    )


def _scaled(summary: Summary, factor: float) -> Summary:
    if factor == 1.0:
        return summary
    low = None if summary.min is None else summary.min * factor
    high = None if summary.max is None else summary.max * factor
    return replace(
        summary, min=low, max=high, absmax=summary.absmax * factor, sum=summary.sum * factor,
        sumsq=summary.sumsq * factor * factor,
    )  # fmt: skip


def _is_square(x: Summary, out: Summary) -> bool:
    """Return whether |max| of the result is that of the operand squared, or the result overflowed."""
    if out.n_posinf and x.absmax > 1.0:
        return True
    return bool(x.absmax) and math.isclose(out.absmax, x.absmax**2, rel_tol=0.02)


def _count(size: float) -> str:
    if size == math.inf:
        return "any number of"
    return f"{size:,.0f}" if size >= 10 else f"{size:.3g}"
