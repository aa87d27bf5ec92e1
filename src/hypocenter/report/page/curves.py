"""The curves of a run as pictures that need no script: loss, gradient norm, learning rate and loss scale over steps.

Each has a title with its unit, axes, a legend, a mark at each finding and a shade where values were not finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from markupsafe import Markup

from hypocenter.nouns import Finding, StepRecord
from hypocenter.report import wording
from hypocenter.report.job_steps import of_job, was_skipped_by_scaler

WIDTH, HEIGHT = 440, 190  # of the picture, in units that are pixels at its usual size
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 12, 36
MOST_POINTS = 1500  # of one curve: the picture is about 500 pixels wide
MOST_LANES = 4  # ranks with a curve of their own; of more the mean is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One quantity over the steps of the job, or of one rank."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart, and what stands above and below it."""

    title: str
    svg: Markup
    axis: str  # JSON: how curves.js reads values back from the picture
    curves: tuple[Curve, ...]
    legend: tuple[tuple[str, str], ...]  # (class of the swatch, meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Turns values into heights."""

    low: float
    high: float
    is_log: bool

    def y(self, value: float) -> float:
        low, high, at = (map(math.log, (self.low, self.high, value))) if self.is_log else (self.low, self.high, value)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - share), 2)


def pictures(records: Sequence[tuple[int, StepRecord]], findings: Sequence[Finding]) -> list[Picture]:
    """Return the charts that say something: of a quantity that was recorded, and changed."""
    job = of_job(records)
    if len(job) < 2:
        return []
    ranks = sorted({rank for rank, _ in records})
    lanes = [(f"rank {rank}", [record for own, record in records if own == rank]) for rank in ranks]
    many = lanes if 1 < len(lanes) <= MOST_LANES else [("", job)]
    found: list[Picture] = []
    for title, of, is_usual in _QUANTITIES:
        sides = many if title == "Loss" else [("", job)]
        curves = [_curve(name, rows, of) for name, rows in sides]
        values = [value for curve in curves for value in curve.values if value is not None]
        if values and (is_usual or len(set(values)) > 1):
            found.append(_picture(title, curves, job, findings))
    return found


def loss_scale(records: Sequence[tuple[int, StepRecord]], findings: Sequence[Finding]) -> Picture | None:
    """Return the chart of the loss scale, for a page's diary where no script runs; None when there was none."""
    job = of_job(records)
    curve = _curve("", job, lambda record: record.loss_scale)
    return _picture("Loss scale", [curve], job, findings) if len(job) > 1 and any(curve.values) else None


_QUANTITIES: tuple[tuple[str, Callable[[StepRecord], float | None], bool], ...] = (
    ("Loss", lambda record: record.loss, True),
    (
        "Gradient norm (L2, before clipping)",
        lambda record: None if was_skipped_by_scaler(record) else record.grad_norm,
        True,
    ),
    ("Learning rate", lambda record: record.lr, False),
)


def _curve(name: str, rows: Sequence[StepRecord], of: Callable[[StepRecord], float | None]) -> Curve:
    stride = max(1, math.ceil(len(rows) / MOST_POINTS))
    kept = sorted(rows, key=lambda record: record.step)[::stride]
    values = map(of, kept)
    finite = tuple(float(f"{v:.6g}") if v is not None and math.isfinite(v) else None for v in values)
    return Curve(name=name, steps=tuple(record.step for record in kept), values=finite)


def _picture(title: str, curves: Sequence[Curve], job: Sequence[StepRecord], findings: Sequence[Finding]) -> Picture:
    first, last = job[0].step, job[-1].step
    values = [value for curve in curves for value in curve.values if value is not None]
    low, high = min(values), max(values)
    is_log = low > 0 and high > 50 * low
    if not is_log and low == high:
        low, high = low - abs(low or 1.0) / 2, high + abs(high or 1.0) / 2
    axis = _Axis(low=low, high=high, is_log=is_log)
    bad = [record.step for record in job if is_bad(record)]
    marks = sorted({finding.step for finding in findings if finding.severity != "note"})
    parts = [*_frame(axis, first, last), *_shades(bad, first, last)]
    for at, curve in enumerate(curves):
        parts.append(f'<path class="curve c{at}" d="{_path(curve, axis, first, last)}"/>')
    parts += [_mark(step, first, last) for step in marks[:20] if first <= step <= last]
    legend = [(f"line c{at}", curve.name) for at, curve in enumerate(curves) if curve.name]
    legend += [("shade", "not finite")] * bool(bad) + [("mark", "a finding")] * bool(marks)
    label = f"{title} over steps {first} to {last}, {wording.number(values[0])} to {wording.number(values[-1])}"
    svg = (
        f'<svg class="picture" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
    return Picture(
        title=title + (" (log scale)" if is_log else ""),
        svg=Markup(svg),
        axis=json.dumps(
            {
                "first": first,
                "last": last,
                "left": _LEFT,
                "right": WIDTH - _RIGHT,
                "width": WIDTH,
                "top": _TOP,
                "bottom": HEIGHT - _BOTTOM,
                "low": low,
                "high": high,
                "isLog": is_log,
            }
        ),
        curves=tuple(curves),
        legend=tuple(legend),
    )


def is_bad(record: StepRecord) -> bool:
    """Return whether something of this step was not finite, except in steps that a loss scaler skips."""
    if was_skipped_by_scaler(record):
        return False
    values = (record.loss, record.grad_norm)
    return record.n_bad_grads > 0 or any(value is not None and not math.isfinite(value) for value in values)


def _x(step: float, first: int, last: int) -> float:
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (step - first) / max(last - first, 1), 1)


def _frame(axis: _Axis, first: int, last: int) -> Iterator[str]:
    foot, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in _ticks(axis):
        y = axis.y(value)
        yield f'<path class="grid" d="M{_LEFT} {y}H{right}"/>'
        yield f'<text class="end" x="{_LEFT - 6}" y="{y + 4}">{wording.number(float(f"{value:.3g}"))}</text>'
    for step in _step_ticks(first, last):
        x = _x(step, first, last)
        yield f'<path class="grid" d="M{x} {foot}v4"/><text class="mid" x="{x}" y="{foot + 16}">{step:,}</text>'
    yield f'<text class="mid" x="{(_LEFT + right) // 2}" y="{HEIGHT - 4}">step</text>'


def _ticks(axis: _Axis) -> list[float]:
    if axis.is_log:
        decades = range(math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high)) + 1)
        found = [10.0**n for n in decades][:: max(1, len(decades) // 4)]
        return found if len(found) > 1 else [axis.low, axis.high]
    size = _round_step((axis.high - axis.low) / 4)
    return [n * size for n in range(math.ceil(axis.low / size), math.floor(axis.high / size) + 1)]


def _step_ticks(first: int, last: int) -> list[int]:
    size = max(1, int(_round_step(max(last - first, 1) / 5)))
    return list(range(math.ceil(first / size) * size, last + 1, size))


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not below `least`."""
    decade = 10.0 ** math.floor(math.log10(least))
    return next(n * decade for n in (1, 2, 5, 10) if n * decade >= least * 0.999)


def _path(curve: Curve, axis: _Axis, first: int, last: int) -> str:
    pen, out = "M", list[str]()
    for step, value in zip(curve.steps, curve.values, strict=True):
        if value is None or (axis.is_log and value <= 0):
            pen = "M"
            continue
        out.append(f"{pen}{_x(step, first, last)} {axis.y(value)}")
        pen = "L"
    return "".join(out)


def _shades(bad: Sequence[int], first: int, last: int) -> Iterator[str]:
    """Yield one rectangle for each run of steps that were not finite."""
    for _, group in groupby(enumerate(bad), key=lambda pair: pair[1] - pair[0]):
        span = [step for _, step in group]
        x = _x(max(span[0] - 0.5, first), first, last)
        width = max(1.0, round(_x(min(span[-1] + 0.5, last), first, last) - x, 1))
        yield f'<rect class="shade" x="{x}" y="{_TOP}" width="{width}" height="{HEIGHT - _TOP - _BOTTOM}"/>'


def _mark(step: int, first: int, last: int) -> str:
    x = _x(step, first, last)
    return f'<path class="mark" d="M{x} {_TOP}V{HEIGHT - _BOTTOM}M{x - 4} {_TOP - 6}h8l-4 6z"/>'
