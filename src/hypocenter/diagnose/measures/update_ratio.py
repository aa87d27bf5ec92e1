"""The size of an update over the size of the weights that it changes.

What it means
    About 0.001 a step is usual of Adam with usual learning rates. Far above it weights are thrown about; far below
    they hardly learn, or the update is lost in rounding. It tells a learning rate that does not fit one layer, and
    how that drifts as weights grow (You et al. 2017, arXiv 1708.03888; Kosson et al. 2023, arXiv 2305.17212).

How it is decided
    `run --health` keeps each parameter, of large ones a sample of 65,536 elements, over the update of its steps:
    norm of the change over the norm before, median of the latest 4 looks. Told of parameters of two dimensions or
    more. Out of range: above 0.1, or below 1e-7 but not 0, in all of these looks.

What to do
    Above: a lower learning rate or a longer warm-up, for that group of parameters. Below: look whether the schedule
    has ended, at gradient clipping, at Adam's eps, and at HC303 in a low format.

When it is wrong
    At the start of training, of weights that begin near zero, and at the end of a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from hypocenter.detect.health_rows import LOOKS, UPDATE
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.recorded_health import Recorded

MOST, LEAST = 0.1, 1e-7


@measure("update-ratio", column="update", needs="health", order=100)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each weight."""
    for series in recorded.looks(UPDATE):
        norms, updates = series.points(0), series.points(1)
        ratios = [u / n for (_, n), (_, u) in zip(norms, updates, strict=True) if n > 0]
        if len(series.last.shape) < 2 or not ratios:
            continue
        latest = ratios[-LOOKS:]
        now, first = median(latest), median(ratios[:LOOKS])
        says = f"{short(now)} a step"
        if len(ratios) >= 2 * LOOKS and first and now:
            says += f", {now / first:.2g} times what it was at first"
        is_out = len(latest) == LOOKS and (min(latest) > MOST or all(0 < r < LEAST for r in latest))
        yield Value(
            site=series.place.site,
            value=now,
            says=says,
            is_out=is_out,
            how_far=max(now / MOST, LEAST / (now or 1.0)),
            step=series.last.step,
            rank=series.place.rank,
        )
