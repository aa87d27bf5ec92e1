"""A norm turned its input into exact zeros: its variance overflowed.

What it means
    A norm that squares its input in float16 gets infinity above 256, because 256² = 65536 > 65504, the largest
    float16. Then 1 / sqrt(inf) is 0 and the output is zero: finite, without any NaN, and wrong. No check for
    NaN sees it.

How it is decided
    A module with "Norm" in its class name has a float16 input with |max| above 255.9 and an output that is
    exactly zero throughout, in the same call. A replay, when there is one, names the operation and proves it.

What to do
    Compute the variance in float32 (x.float() inside the norm).

When it is wrong
    When the norm's weight is zero, as in zero-initialised branches: then the output was zero in earlier steps
    too, and it is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import LARGE_HALF, rule
from hypocenter.detect.window import Window
from hypocenter.formats import FORMATS
from hypocenter.nouns import Finding, Reading

LARGEST_HALF = FORMATS["float16"].max


@rule("HC105", "nonfinite", severity="error", reads=("large-half", "zero"), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire on a float16 norm with large input and an output of nothing but zeros."""
    rows = [r for r in window.by_phase["forward"] if "norm" in r.module.lower() and not r.op]
    large = {
        (r.site, r.microbatch, r.call): r
        for r in rows
        if r.port == "in[0]" and r.dtype == "float16" and r.summary.absmax > LARGE_HALF
    }
    for row in rows:
        given = large.get((row.site, row.microbatch, row.call))
        if given is None or row.port != "out[0]" or not _is_zero(row):
            continue
        if any(_is_zero(earlier) for earlier in window.history.rows(row.site, row.port)):
            continue
        squared = given.summary.absmax**2
        yield Finding(
            code="HC105",
            kind="nonfinite",
            severity="error",
            title=f"{row.module} turned its input into exact zeros",
            step=window.step,
            microbatch=row.microbatch,
            rank=window.rank,
            phase="forward",
            site=row.site,
            port=row.port,
            cause="format-overflow",
            confidence="likely",
            limit=LARGEST_HALF,
            actual=squared,
            why=(
                f"the input is finite, |max| {given.summary.absmax:.5g}; its square is {squared:.3g} > 65504, the "
                "largest float16",
                "the output is 0 at every element, as 1 / sqrt(inf) makes it",
            ),
            chips=(f"0 ×{row.summary.n_zero:,}",),
            names=row.names,
        )


def _is_zero(reading: Reading) -> bool:
    return 0 < reading.summary.n_hist == reading.summary.n_zero
