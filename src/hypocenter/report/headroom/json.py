"""`hypocenter.headroom/1`: the answer as it is written, made from what was computed."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hypocenter.report.headroom import sentences
from hypocenter.report.headroom.answer import LOST, Answer, Line, Status
from hypocenter.report.headroom.gather import PHASES, Known
from hypocenter.report.headroom.reductions import Reduction
from hypocenter.summary.reductions import Bound
from hypocenter.summary.scale_window import ScaleWindow

Phase = Annotated[str, Meta(extra_json_schema={"enum": PHASES})]
Share = Annotated[float, Meta(ge=0, le=1.0000001)]
Zeroed = Annotated[Share | None, Meta(description="fraction of the elements that would become zero")]


class NumberFormat(Struct, frozen=True, kw_only=True):
    """The format that was asked about."""

    name: str
    max: float
    smallest_normal: float
    smallest_subnormal: float


class Site(Struct, frozen=True, kw_only=True):
    """One place at the scale asked about. What the recording does not tell is null."""

    phase: Phase
    site: str
    port: str
    op: str | None
    line: int | None
    dtype: str
    known: Annotated[
        Known, Meta(description="what was recorded: histograms, the largest magnitude, or the L2 norm alone")
    ]
    scale: float
    absmax: Annotated[
        float, Meta(description="largest magnitude at the scale, or the L2 norm where only that is known")
    ]
    step: int
    headroom_bits: float | None
    headroom_bits_at_most: float | None
    overflows: bool | None
    overflow: Share | None
    zero: Zeroed
    subnormal: Share | None
    already_zero: Share | None
    elements: int
    readings: int
    nonfinite: int
    still_nonfinite: Annotated[
        int, Meta(description="of the elements that were not finite as recorded, those at this scale or a smaller one")
    ]
    sampled: bool
    replay: bool


class PhaseOf(Struct, frozen=True, kw_only=True):
    """All places of one phase; shares are of all their elements."""

    phase: Phase
    sites: int
    overflowing: int
    unknown: int
    headroom_bits: float | None
    overflow: Share | None
    zero: Share | None
    subnormal: Share | None


class Window(Struct, frozen=True, kw_only=True):
    """Loss scales that lose no more than a share of the gradients."""

    lost: Annotated[float, Meta(description="share of the nonzero elements of each site that may become zero")]
    empty: bool
    above: Annotated[float, Meta(description="a scale must be larger than this")]
    below: Annotated[float | None, Meta(description="and smaller than this; null without an upper limit")]
    smallest_power: int | None
    largest_power: int | None
    lowest_site: str | None
    highest_site: str | None
    sampled: bool


class SiteWindow(Window, frozen=True, kw_only=True):
    """The window of the gradients of one site."""

    site: str


class Growing(Struct, frozen=True, kw_only=True):
    """A reduction whose result grows with a length, and from where on it overflows."""

    phase: Phase
    site: str
    op: str
    line: int | None
    step: int
    dtype: str
    of: Annotated[str, Meta(extra_json_schema={"enum": ("terms", "|x|", "inner dimension")})]
    present: float | None
    critical: float
    bound: Bound
    typical: float
    never_below: float
    in_accumulator: bool
    text: str


class Headroom(Struct, frozen=True, kw_only=True):
    """What a number format, at a loss scale, would do to a recorded run.

    Magnitudes and fractions are at `scale` in the phases backward and grad, at scale 1 in the others.
    """

    schema: Literal["hypocenter.headroom/1"] = "hypocenter.headroom/1"
    status: Status
    run: str
    format: NumberFormat
    scale: Annotated[float | None, Meta(description="as asked for; null: each step's own")]
    recorded_scales: tuple[float, ...]
    level: str
    text: Annotated[str, Meta(description="the answer in one sentence")]
    first: Annotated[Site | None, Meta(description="the first site to overflow, in execution order")]
    phases: tuple[PhaseOf, ...]
    sites: tuple[Site, ...]
    window: Annotated[
        Window | None,
        Meta(description="loss scales that lose no recorded gradient; null when gradients' values were not recorded"),
    ]
    window_lost: Window | None
    largest_power: Annotated[
        int | None, Meta(description="exponent of the largest power of two at which no recorded gradient overflows")
    ]
    lost_there: Annotated[
        Share | None, Meta(description="fraction of all gradients that would become zero at that scale")
    ]
    windows: tuple[SiteWindow, ...]
    reductions: tuple[Growing, ...]
    notes: tuple[str, ...]


def written(answer: Answer, run: str) -> Headroom:
    """Return the answer about the run of this name in the form in which it is written."""
    form = answer.format
    return Headroom(
        status=answer.status, run=run, scale=answer.scale, recorded_scales=answer.recorded, level=answer.level,
        format=NumberFormat(
            name=form.name, max=form.max, smallest_normal=form.smallest_normal,
            smallest_subnormal=form.smallest_subnormal,
        ),
        text=sentences.headline(answer), first=_site(answer.first) if answer.first is not None else None,
        phases=tuple(
            PhaseOf(
                phase=t.phase, sites=t.n_sites, overflowing=t.n_overflowing, unknown=t.n_unknown,
                headroom_bits=t.worst.bits if t.worst is not None else None, overflow=t.overflow, zero=t.flushed,
                subnormal=t.subnormal,
            )
            for t in answer.phases
        ),
        sites=tuple(map(_site, answer.lines)),
        window=_window(answer.window, 0.0) if answer.window is not None else None,
        window_lost=_window(answer.window_lost, LOST) if answer.window_lost is not None else None,
        largest_power=answer.largest_power, lost_there=answer.lost_there,
        windows=tuple(SiteWindow(site=site, **asdict(_window(window, 0.0))) for site, window in answer.windows),
        reductions=tuple(_growing(one, answer) for one in answer.reductions), notes=answer.notes,
    )  # fmt: skip


def _site(line: Line) -> Site:
    return Site(
        phase=line.phase, site=line.site, port=line.port, op=line.op or None, line=line.line or None, dtype=line.dtype,
        known=line.known, scale=line.scale, absmax=line.absmax, step=line.step, headroom_bits=line.bits,
        headroom_bits_at_most=line.bits if line.bits_at_most is None else line.bits_at_most, overflows=line.overflows,
        overflow=line.overflow, zero=line.flushed, subnormal=line.subnormal, already_zero=line.zero, elements=line.n,
        readings=line.n_steps, nonfinite=line.n_nonfinite, still_nonfinite=line.n_still_bad, sampled=line.is_sampled,
        replay=line.is_replay,
    )  # fmt: skip


def _window(window: ScaleWindow, lost: float) -> Window:
    return Window(
        lost=lost, empty=window.is_empty, above=_float(window.above),
        below=None if window.below is None else _float(window.below), smallest_power=window.smallest_power,
        largest_power=window.largest_power, lowest_site=window.lowest_site or None,
        highest_site=window.highest_site or None, sampled=window.is_sampled,
    )  # fmt: skip


def _growing(found: Reduction, answer: Answer) -> Growing:
    return Growing(
        phase=found.phase, site=found.site, op=found.op, line=found.line or None, step=found.step, dtype=found.dtype,
        of=found.of, present=found.present, critical=found.critical, bound=found.bound, typical=found.typical,
        never_below=found.never_below, in_accumulator=found.is_in_accumulator, text=found.sentence(answer.format),
    )  # fmt: skip


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
