"""How outputs of modules and weights have grown.

What it means
    Outputs that keep growing end in overflow, in saturated softmaxes, or in a norm that hides everything else; a
    residual stream grows with depth, it should not with steps. Weights grow under a constant learning rate without
    decay; then the same update changes less and less (Kosson et al. 2023, arXiv 2305.17212).

How it is decided
    Root mean square of a module's output (level modules) and norm of a parameter of two dimensions or more
    (`--health`): median of the latest quarter of the steps over that of the first quarter, of at least 8. Out of
    range: 10 times or more.

What to do
    Find the first layer in which it grows: those behind it follow. Weight decay, a lower learning rate,
    normalisation of what comes in. For a format's limit see HC205.

When it is wrong
    Early in training values go from their initial size to that of the data; weights that begin at zero grow from
    nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from hypocenter.detect.health_rows import UPDATE
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.recorded_health import Recorded, Series

MOST = 10.0  # times
LEAST_STEPS = 8


@measure("norm-growth", column="growth", needs=("modules", "health"), order=90)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each output and of each weight."""
    for series in recorded.outputs:
        if series.last.dtype.startswith(("float", "bfloat")):
            n = series.column("n")
            rms = np.sqrt(np.where(n > 0, series.column("sumsq") / np.maximum(n, 1), 0.0))
            yield from _value(series, rms.tolist(), f"{series.place.port}: root mean square")
    for series in recorded.looks(UPDATE):
        if len(series.last.shape) > 1:
            yield from _value(series, [norm for _, norm in series.points(0)], "norm")


def _value(series: Series, sizes: Sequence[float], what: str) -> Iterator[Value]:
    n = len(sizes) // 4
    if len(sizes) < LEAST_STEPS or not (first := median(sizes[:n])):
        return
    times = median(sizes[-n:]) / first
    yield Value(
        site=series.place.site,
        value=times,
        says=f"{what} from {short(first)} to {short(median(sizes[-n:]))}",
        is_out=times >= MOST,
        how_far=times,
        step=series.last.step,
        rank=series.place.rank,
    )
