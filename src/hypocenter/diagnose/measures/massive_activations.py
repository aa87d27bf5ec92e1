"""A few values of an output are far larger than all others.

What it means
    Large transformers put very large values into few fixed channels, often of the first token, and use them as a
    bias of attention (Sun et al. 2024, arXiv 2402.17762). They are no error, but they set the range of a format:
    fp8 and int8 with one scale for a tensor lose the others.

How it is decided
    Of each module's output at the latest recorded step: the largest magnitude over the median one, which is told
    from the histogram of exponents. Out of range, as there defined: above 100 and at least 1,000 times the median.

What to do
    Nothing, in bfloat16 or float32. Before you go to a smaller format: `hypocenter headroom`, and scales for blocks
    in place of one for a tensor.

When it is wrong
    The median is known to half an octave, and by default from a sample of 512 elements (`--histogram full`).
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.recorded_health import Recorded
from hypocenter.nouns import Summary

LARGE, TIMES = 100.0, 1000.0  # Sun et al. 2024


@measure("massive-activations", column="massive", needs="modules", order=80)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each output."""
    for series in recorded.outputs:
        row = series.last
        median = median_magnitude(row.summary)
        if not median or not row.dtype.startswith(("float", "bfloat")):
            continue
        times = row.summary.absmax / median
        yield Value(
            site=series.place.site,
            value=times,
            is_out=row.summary.absmax > LARGE and times >= TIMES,
            how_far=times,
            says=f"{row.port}: the largest, {short(row.summary.absmax)}, is {short(round(times, 1))} times the median",
            step=row.step,
            rank=series.place.rank,
        )


def median_magnitude(summary: Summary) -> float:
    """Return the median of nonzero magnitudes, to half an octave; 0 where there is none."""
    half, so_far = sum(summary.hist) / 2, 0
    for i, n in enumerate(summary.hist):
        so_far += n
        if n and so_far >= half:
            return 1.5 * 2.0 ** (summary.hist_first + i)
    return 0.0
