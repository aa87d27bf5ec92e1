"""What a format, at a loss scale, would do to a recorded run: per place, per phase, and the window of loss scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa

from hypocenter.formats import Format
from hypocenter.nouns import StepRecord, Summary
from hypocenter.report import wording
from hypocenter.report.headroom.gather import PHASES, Gathered, Known, gather
from hypocenter.report.headroom.reductions import Reduction, reductions_of
from hypocenter.report.headroom.scales import is_scaled
from hypocenter.summary.casting import floor_log2
from hypocenter.summary.histogram import overflow_fraction, subnormal_fraction, underflow_fraction, zero_fraction
from hypocenter.summary.merge import merge
from hypocenter.summary.scale_window import ScaleWindow, intersection, scale_window

Status = Literal["fits", "overflows", "cannot-tell"]
LOST = 0.001  # share of nonzero gradients whose loss is asked about beside none: a thousandth


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One place at the scale asked about. A fraction is None where the recording does not tell."""

    phase: str
    site: str
    port: str
    op: str
    line: int
    source: str
    dtype: str
    known: Known
    scale: float  # at which it is answered; 1 in forward, which no loss scale touches
    absmax: float  # at that scale; of the L2 norm where only that is known
    step: int  # of the largest
    bits: float | None  # headroom; negative beyond the limit; None when all values are zero
    bits_at_most: float | None  # where only the norm is known: that of the root mean square
    overflows: bool | None
    overflow: float | None
    flushed: float | None
    subnormal: float | None
    zero: float | None
    n: int  # elements, over all readings
    n_steps: int
    n_nonfinite: int  # as recorded
    n_still_bad: int  # of these, at the scale asked about or a smaller one
    is_sampled: bool
    is_replay: bool
    hist_first: int  # of the histogram at that scale, in whole octaves
    hist: tuple[int, ...]

    @property
    def is_scaled(self) -> bool:
        """Whether a loss scale multiplies these values."""
        return is_scaled(self.phase, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTotal:
    """All places of one phase."""

    phase: str
    n_sites: int
    n_overflowing: int
    n_unknown: int  # places of which it cannot be told whether they overflow
    worst: Line | None  # with the least headroom
    overflow: float | None  # fractions of all elements
    flushed: float | None
    subnormal: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that `hypocenter headroom` says."""

    format: Format
    scale: float | None  # as asked for; None: each step's own
    recorded: tuple[float, ...]  # loss scales that were recorded, rising; empty without a scaler
    level: str
    status: Status
    phases: tuple[PhaseTotal, ...]
    lines: tuple[Line, ...]  # by phase, in execution order
    first: Line | None  # the first to overflow, in execution order
    window: ScaleWindow | None  # of the model; None when gradients' magnitudes were not recorded
    window_lost: ScaleWindow | None  # the same, when a share of LOST may become zero
    windows: tuple[tuple[str, ScaleWindow], ...]  # by site
    largest_power: int | None  # exponent of the largest power of two at which no recorded gradient overflows
    lost_there: float | None  # share of all gradients that would become zero at that scale
    reductions: tuple[Reduction, ...]
    notes: tuple[str, ...]


def answers(
    table: pa.Table,
    records: Iterable[tuple[int, StepRecord]],
    forms: Sequence[Format],
    *,
    scale: float | None = None,
    phases: Sequence[str] = PHASES,
    level: str = "",
) -> list[Answer]:
    """Return the answers for several formats, from one reading of the table; all have places in the same order.

    Args:
        table: the selected readings (record.schema.READINGS and `rank`).
        records: (rank, step record), of all steps.
        forms: the target formats; reductions are looked at for the first alone.
        scale: the loss scale; each step's own when None, 1 where there was none.
        phases: the ones to look at.
        level: of the recording.
    """
    records = list(records)
    everything = [g for g in gather(table, records) if g.phase in phases]
    found = _best_known(everything)
    told = [_answer(everything, found, form, scale, level) for form in forms]
    return [replace(told[0], reductions=reductions_of(table, records, forms[0], scale, phases)), *told[1:]]


def _answer(
    everything: Sequence[Gathered], found: Sequence[Gathered], form: Format, scale: float | None, level: str
) -> Answer:
    lines = _lines(found, form, scale)
    windows = _windows(found, form, lost=0.0)
    model = intersection(w for _, w in windows) if windows else None
    largest_power = _largest_power(model)
    first = min((x for x in lines if x.overflows), key=_by_execution(lines), default=None)
    return Answer(
        format=form,
        scale=scale,
        recorded=tuple(sorted({g.recorded for g in found if g.is_scaled and g.recorded != 1.0})),
        level=level,
        status=_status(lines),
        phases=tuple(_total(p, [x for x in lines if x.phase == p]) for p in PHASES if any(x.phase == p for x in lines)),
        lines=tuple(lines),
        first=first,
        window=model,
        window_lost=intersection(w for _, w in _windows(found, form, lost=LOST)) if windows else None,
        windows=tuple(windows),
        largest_power=largest_power,
        lost_there=_lost_at(found, form, largest_power),
        reductions=(),
        notes=tuple(_notes(everything, lines, level)),
    )


def name_of(place: Gathered | Line) -> str:
    """Return the name of a place: `encoder.ff out[0]`, `encoder.ff out[0] aten.mul.Tensor`."""
    return " ".join(part for part in (place.site or "(model)", place.port, place.op) if part)


def _by_execution(lines: Sequence[Line]) -> Any:
    order = {id(line): i for i, line in enumerate(lines)}
    return lambda line: order[id(line)]


def _lines(found: Sequence[Gathered], form: Format, scale: float | None) -> list[Line]:
    """Return one line per place; parts recorded at different loss scales are joined at the scale asked about."""
    parts: dict[tuple[Any, ...], list[Gathered]] = {}
    for g in found:
        parts.setdefault((g.phase, g.site, g.port, g.op, g.line, g.dtype, g.known == "norm"), []).append(g)
    return [_line(group, form, scale) for group in parts.values()]


def _line(group: Sequence[Gathered], form: Format, scale: float | None) -> Line:
    factors = [(_asked(g, scale) / g.carried if g.is_scaled else 1.0) for g in group]
    worst, factor = max(zip(group, factors, strict=True), key=lambda pair: pair[0].largest * pair[1])
    largest = worst.largest * factor
    is_norm = worst.known == "norm"
    whole = [(g, f) for g, f in zip(group, factors, strict=True) if g.known == "values"]
    known = "values" if whole else worst.known
    rms = max(g.rms * f for g, f in zip(group, factors, strict=True))
    merged = Summary()
    for g, f in zip(group, factors, strict=True):
        merged = merge(merged, _moved(g.summary, f))
    return Line(
        phase=worst.phase,
        site=worst.site,
        port=worst.port,
        op=worst.op,
        line=worst.line,
        source=worst.source,
        dtype=worst.dtype,
        known=known,
        scale=_asked(worst, scale),
        absmax=largest,
        step=worst.step,
        bits=_bits(form, largest),
        bits_at_most=_bits(form, rms) if is_norm else None,
        overflows=_overflows(form, largest, rms, is_norm),
        overflow=_fraction(overflow_fraction, whole, form),
        flushed=_fraction(underflow_fraction, whole, form) if whole else _all_or_unknown(largest, form),
        subnormal=_fraction(subnormal_fraction, whole, form),
        zero=_weighted([(zero_fraction(g.summary), g.summary.n) for g, _ in whole]) if whole else None,
        n=sum(g.summary.n for g in group),
        n_steps=sum(g.n_steps for g in group),
        n_nonfinite=sum(g.n_nonfinite for g in group),
        n_still_bad=sum(g.n_nonfinite for g, f in zip(group, factors, strict=True) if f >= 1.0),
        is_sampled=any(g.summary.n_hist < g.summary.n for g, _ in whole),
        is_replay=worst.is_replay,
        hist_first=merged.hist_first,
        hist=merged.hist,
    )


def _asked(g: Gathered, scale: float | None) -> float:
    if not g.is_scaled:
        return 1.0
    return g.recorded if scale is None else scale


def _moved(summary: Summary, factor: float) -> Summary:
    """Return the histogram alone, moved by whole octaves, for pictures."""
    if not summary.hist:
        return Summary()
    return Summary(hist_first=summary.hist_first + floor_log2(Fraction(factor)), hist=summary.hist)


def _bits(form: Format, magnitude: float) -> float | None:
    return math.log2(form.max) - math.log2(magnitude) if 0.0 < magnitude < math.inf else None


def _beyond(form: Format, magnitude: float) -> bool:
    exact = Fraction(magnitude)
    return exact > form.overflows_from or (exact == form.overflows_from and form.has_infinity)


def _overflows(form: Format, largest: float, rms: float, is_norm: bool) -> bool | None:
    """Return whether it overflows; None when a norm cannot tell: its largest element lies between rms and norm."""
    if not _beyond(form, largest):
        return False
    return True if not is_norm or _beyond(form, rms) else None


def _all_or_unknown(largest: float, form: Format) -> float | None:
    """Return the share that becomes zero by the largest element alone: 1 when that does, else None."""
    return 1.0 if largest > 0.0 and Fraction(largest) <= form.flushes_to else None


def _fraction(of: Any, whole: Sequence[tuple[Gathered, float]], form: Format) -> float | None:
    """Return the share over all elements of readings with a histogram; None without any."""
    return _weighted([(of(g.summary, form, f), g.summary.n) for g, f in whole]) if whole else None


def _weighted(shares: Iterable[tuple[float, int]]) -> float:
    pairs = list(shares)
    n = sum(weight for _, weight in pairs)
    return sum(share * weight for share, weight in pairs) / n if n else 0.0


def _windows(found: Sequence[Gathered], form: Format, *, lost: float) -> list[tuple[str, ScaleWindow]]:
    windows: dict[str, list[ScaleWindow]] = {}
    for g in found:
        if g.is_scaled and g.known != "norm" and g.summary.absmax:
            name = name_of(g)
            window = scale_window(g.summary, form, carried=g.carried, lost=lost, site=name)
            windows.setdefault(name, []).append(window)
    return [(name, intersection(parts)) for name, parts in windows.items()]


def _best_known(found: Sequence[Gathered]) -> list[Gathered]:
    """Drop the norms of places whose values are known at some steps: values tell more."""
    whole = {(g.phase, g.site, g.port) for g in found if g.known != "norm"}
    return [g for g in found if g.known != "norm" or (g.phase, g.site, g.port) not in whole]


def _largest_power(window: ScaleWindow | None) -> int | None:
    if window is None:
        return None
    return replace(window, above=Fraction(0)).largest_power


def _lost_at(found: Sequence[Gathered], form: Format, power: int | None) -> float | None:
    gradients = [g for g in found if g.is_scaled and g.known == "values"]
    if power is None or not gradients or not -1000 < power < 1000:
        return None
    return _fraction(underflow_fraction, [(g, 2.0**power / g.carried) for g in gradients], form)


def _total(phase: str, lines: Sequence[Line]) -> PhaseTotal:
    known = [x for x in lines if x.bits is not None]
    return PhaseTotal(
        phase=phase,
        n_sites=len(lines),
        n_overflowing=sum(x.overflows is True for x in lines),
        n_unknown=sum(x.overflows is None for x in lines),
        worst=min(known, key=lambda x: x.bits if x.bits is not None else math.inf, default=None),
        overflow=_over_all(lines, [x.overflow for x in lines]),
        flushed=_over_all(lines, [x.flushed for x in lines]),
        subnormal=_over_all(lines, [x.subnormal for x in lines]),
    )


def _over_all(lines: Sequence[Line], shares: Sequence[float | None]) -> float | None:
    """Return the share of all elements; None as soon as one place does not tell."""
    if any(share is None for share in shares):
        return None
    return _weighted((share or 0.0, line.n) for share, line in zip(shares, lines, strict=True))


def _status(lines: Sequence[Line]) -> Status:
    if any(x.overflows or x.n_still_bad for x in lines):
        return "overflows"
    return "fits" if lines and all(x.overflows is False for x in lines) else "cannot-tell"


def _notes(found: Sequence[Gathered], lines: Sequence[Line], level: str) -> Iterable[str]:
    if not found:
        return
    if any(x.known == "largest" for x in lines):
        yield (
            "of some gradients only the largest element was recorded, by the loss-scale diary and not at every step: "
            "what becomes zero cannot be told; record more with --level modules"
        )
    if all(x.known == "norm" for x in lines):
        yield (
            "only L2 norms were recorded: the largest element lies between the norm and the root mean square, and what "
            "becomes zero cannot be told; record more with --level modules"
        )
    elif not any(x.phase == "forward" for x in lines) and level in ("", "sentinel"):
        yield "activations were not recorded; record them with --level modules"
    partly = {g.site for g in found if g.known == "norm"} & {x.site for x in lines if x.known == "values"}
    if partly:
        steps = max(x.n_steps for x in lines if x.site in partly and x.phase == "grad")
        yield (
            f"parameters' gradients were recorded in full at {wording.count(steps, 'step')}, elsewhere as norms, "
            "which are left out; record more with --param-schedule every=1"
        )
    replayed = sorted({x.phase for x in lines if x.is_replay})
    if replayed:
        yield f"{' and '.join(replayed)}: from the replay of a step that failed; the run itself did not record them"
    if any(x.is_sampled for x in lines if x.known == "values"):
        yield (
            "histograms are of 512 elements a tensor: fractions are estimates, overflow is exact; "
            "record with --histogram full to count all"
        )
    bad = [x for x in lines if x.n_nonfinite]
    if bad:
        where = f"in {len(bad)} of {len(lines)} sites, {name_of(bad[0])} first"
        yield f"values that were recorded as NaN or infinite are left out of the numbers, {where}"
    halves = {x.dtype for x in lines if x.is_scaled and x.dtype in ("float16", "float8_e4m3fn", "float8_e5m2")}
    if halves:
        yield f"gradients were recorded in {', '.join(sorted(halves))}: what had become zero there before is not seen"
