"""Gates that let no gradient through: sigmoid, tanh, and softmax outside of attention.

What it means
    Far from zero a sigmoid or tanh is flat, and a softmax of which one element has everything is too: what comes
    before gets next to no gradient (Glorot and Bengio 2010; Hochreiter 1991 of recurrent networks). A gate that is
    always open or always closed does nothing that a constant would not do.

How it is decided
    `run --health` does a micro-batch of its steps again. An element is saturated where the derivative is below 1 %
    of its largest: |x| above 6 of a sigmoid, above 3 of a tanh; a row of a softmax where one element has 99.9 %.
    Sigmoid and tanh inside of SiLU and GELU, and scores of routers, are not gates. Out of range: more than half of
    all elements, or 10 % of the units with all their elements in each of the last 4 looks.

What to do
    Look at what comes into the gate: its size, and how that grew. Smaller initial weights, normalisation before the
    gate, a lower learning rate; for a softmax a temperature.

When it is wrong
    Outputs are meant to be sure at the end of training: a classifier inside the model, pixels that are black or
    white.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import CHOICES, GATES, LOOKS
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.recorded_health import Recorded

MOST, STUCK = 0.5, 0.1  # shares of elements, of units


@measure("saturated-gates", column="saturated", needs="health", order=20)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each gate and each softmax that is no attention."""
    for series in recorded.looks(GATES):
        n, share, stuck, _ = series.numbers
        says = f"{share:.0%} of {series.last.names[0]} saturated"
        says += f"; {stuck:.0f} of {n:.0f} units always, in {LOOKS} looks" if stuck else ""
        yield Value(
            site=series.place.site,
            value=share,
            says=says,
            is_out=share > MOST or stuck >= STUCK * n,
            how_far=max(share, stuck / n),
            step=series.last.step,
            rank=series.place.rank,
        )
    for series in recorded.looks(CHOICES):
        n, share = series.numbers
        says = f"{share:.0%} of {n:.0f} rows of a softmax have all in one element"
        yield Value(
            site=series.place.site,
            value=share,
            says=says,
            is_out=share > MOST,
            how_far=share,
            step=series.last.step,
            rank=series.place.rank,
        )
