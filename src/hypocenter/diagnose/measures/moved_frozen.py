"""A parameter that asks for no gradient, and moves.

What it means
    What is frozen should stay as it is. If it moves, something writes to it: an optimizer that still holds it and
    decays its weight, or goes on with its momentum; weights that are tied or loaded again; code of the program. A
    teacher that follows the model as a moving average moves on purpose.

How it is decided
    `run --health` keeps a sample of up to 65,536 elements of each parameter that asks for no gradient, after the
    updates of its steps, and compares it with that of the look before, bit for bit. Out of range: any change.

What to do
    Take frozen parameters out of the optimizer's groups, or freeze them before it is made.

When it is wrong
    Moving averages, target networks, and parameters that a schedule thaws and freezes again.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import LOOKED, MOVED
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.recorded_health import Recorded


@measure("moved-frozen", column="moved", needs="health", order=140)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each that moved; of those that did not one value for all."""
    moved = recorded.looks(MOVED)
    for series in moved:
        relative, since = series.numbers
        says = f"it is frozen and changed by {short(relative)} of its norm since step {since:.0f}"
        yield Value(
            site=series.place.site,
            value=relative,
            says=says,
            is_out=True,
            how_far=relative,
            step=series.last.step,
            rank=series.place.rank,
        )
    for series in recorded.looks(LOOKED)[:1]:
        n_still = int(series.numbers[1]) - len({one.place.site for one in moved})
        if n_still > 0:
            says = f"{n_still:,} frozen parameters stayed as they are"
            yield Value(site="", value=0.0, says=says, is_out=False, how_far=0.0, step=series.last.step)
