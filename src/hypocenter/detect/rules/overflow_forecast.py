"""A value grows towards the largest number of its format and will overflow if it goes on.

What it means
    The largest magnitude of a module's output, of a parameter, or of a gradient that no loss scaler looks after
    has been rising steadily, to levels it never had before, and little headroom is left in its own format. When
    it is used up the value becomes infinite, and NaN follows.

How it is decided
    log2|max| over the steps has a rising trend (median of pairwise slopes, with its 95 % interval), spread over
    the whole stretch and not slowing down in |max| itself; at most 3 bits of headroom are left; and overflow is
    due within as many steps as the growth has been watched, which were 64 at least. The interval takes growth to
    go on exponentially at its near end and linearly at its far end. The site named is the first in execution
    order; one finding is made per rank, as what feeds a growing value makes others grow.

What to do
    Compute that module in float32 or bfloat16, lower the learning rate, or normalise what goes into it. The
    smaller the interval's near end, the sooner.

When it is wrong
    Growth may end by itself: early in training many values settle. Nothing is said of plateaus, jumps, noise,
    or growth that slows down, but a rise that stops just below the limit looks the same until it stops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.forecast import Forecast, forecast
from hypocenter.detect.peaks import is_near_limit, key_of
from hypocenter.detect.window import Window
from hypocenter.formats import FORMATS
from hypocenter.nouns import Finding, Reading, Remedy

MOST_HEADROOM_BITS = 3.0  # 8188 in float16: with more, growth is not yet a matter of the format
MIN_SPAN_STEPS = 64  # of growth: at the start of training values grow from their initial size to that of the data
HORIZON = 1.0  # due within this many times the steps that growth was watched


@rule("HC205", "overflow-risk", severity="warning", reads=("near-limit",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once per rank, on the first site in execution order whose overflow is due."""
    if window.history.peaks.is_told or not (window.loss_finite and window.grads_finite):
        return
    due = [(r, f) for r in _followed(window) if (f := _due(r, window)) is not None]
    if not due:
        return
    window.history.peaks.is_told = True
    reading, found = due[0]
    form = FORMATS[reading.dtype]
    yield Finding(
        code="HC205",
        kind="overflow-risk",
        severity="warning",
        title=f"{_name(reading)} overflows {form.name} in about {_steps(found.likely_steps)}",
        step=window.step,
        microbatch=reading.microbatch,
        rank=window.rank,
        phase=reading.phase,
        site=reading.site,
        port=reading.port,
        param=reading.site if reading.phase in ("param", "grad") else None,
        op=reading.op or None,
        source=reading.source,
        cause="format-overflow",
        confidence="possible",
        limit=form.max,
        actual=reading.summary.absmax,
        why=(*_why(reading, found), *_others(due)),
        remedy=Remedy(
            action="fp32-island",
            targets=(reading.site,) if reading.site else (),
            text=f"compute {reading.site or 'it'} in float32 or bfloat16, lower the learning rate, or normalise its "
            "input",
        ),
        names=reading.names,
    )


def _followed(window: Window) -> list[Reading]:
    """Return for each site the largest reading of the step, in execution order. Inputs are another site's outputs."""
    has_scaler = window.record is not None and window.record.loss_scale is not None
    phases = ("forward", "loss", "param") if has_scaler else ("forward", "loss", "param", "backward", "grad")
    largest: dict[object, Reading] = {}
    for reading in window.of(*phases):
        if is_near_limit(reading) and not reading.port.startswith("in[") and not reading.summary.n_nonfinite:
            key = key_of(reading)
            if key not in largest or reading.summary.absmax > largest[key].summary.absmax:
                largest[key] = reading
    return sorted(largest.values(), key=lambda r: r.order)


def _due(reading: Reading, window: Window) -> Forecast | None:
    log2_limit = math.log2(FORMATS[reading.dtype].max)
    now = math.log2(reading.summary.absmax)
    if log2_limit - now > MOST_HEADROOM_BITS:
        return None
    points = window.history.peaks.of(reading)
    if not points or now < max(log2 for _, log2 in points):  # growth is at its highest now; and this is quick
        return None
    found = forecast([*points, (window.step, now)], log2_limit)
    is_due = found is not None and found.likely_steps <= HORIZON * found.span_steps
    return found if found is not None and is_due and found.span_steps >= MIN_SPAN_STEPS else None


def _name(reading: Reading) -> str:
    if reading.phase in ("param", "grad"):
        return "a parameter" if reading.phase == "param" else "a gradient"
    return reading.op or reading.module or "a value"


def _why(reading: Reading, found: Forecast) -> tuple[str, ...]:
    bits = math.log2(FORMATS[reading.dtype].max) - math.log2(reading.summary.absmax)
    pace = f"every {found.doubling_steps:.0f} steps" if found.doubling_steps >= 1.5 else "every step"
    return (
        f"|max| is {reading.summary.absmax:,.0f}, which leaves {bits:.1f} bits of {reading.dtype}; it has risen since "
        f"step {found.since_step} ({found.n_points} points) and doubles {pace} now",
        f"overflow is due between step {found.step + found.near_steps:.0f} and step {found.step + found.far_steps:.0f}"
        " if it goes on: 95 % interval of the slope, exponential growth at the near end, linear at the far end",
    )


def _others(due: list[tuple[Reading, Forecast]]) -> tuple[str, ...]:
    sites = list(dict.fromkeys(r.site or "the model itself" for r, _ in due[1:] if r.site != due[0][0].site))
    if not sites:
        return ()
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return (f"{', '.join(sites[:3])}{more} grow{'s' if len(sites) == 1 else ''} with it",)


def _steps(n: float) -> str:
    """Say a number of steps as in `1 step` or `80 steps`: with two digits, as more are not known."""
    whole = max(1, round(n))
    digits = max(0, len(str(whole)) - 2)
    rounded = round(whole, -digits)
    return f"{rounded:,} step" if rounded == 1 else f"{rounded:,} steps"
