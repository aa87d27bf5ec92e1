"""How evenly a router spreads its choices over experts, and which get nothing.

What it means
    An expert that gets few rows learns little, so it gets fewer still; one that gets nothing is dead weight. One
    that gets too many is the pace of all the others, or drops rows (Shazeer et al. 2017, arXiv 1701.06538; Fedus et
    al. 2021, arXiv 2101.03961).

How it is decided
    `run --health` does a micro-batch of its steps again. A router is a choice of the largest of E scores that a
    parameter with E outputs makes, on which the loss depends. Told is the load of the busiest expert over the mean.
    Out of range: an expert with nothing in each of the last 4 looks, or a load of 4 times the mean or more.

What to do
    Look at router-certainty and balance-loss: a balancing loss that is too weak or not added at all, a learning
    rate of the router that is too high, scores that overflow. Noise on the scores, or a bias that follows the load,
    spreads them.

When it is wrong
    A small micro-batch of one kind of text has few experts. A vector quantiser is a router in this sense: there
    this tells of codes that are not used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import LOAD, LOOKS, ROUTER
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import listed
from hypocenter.diagnose.recorded_health import Recorded

MOST = 4.0  # times the mean


@measure("expert-load", column="load", needs="health", order=50)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each router."""
    routers = {series.place._replace(port=LOAD): series for series in recorded.looks(ROUTER)}
    for series in recorded.looks(LOAD):
        load, n = series.numbers, len(series.numbers)
        nothing = routers[series.place].numbers[6]
        times = max(load) * n
        idle = [i for i, share in enumerate(load) if share == 0]
        says = f"the busiest of {n} experts ({load.index(max(load))}) gets {times:.1f} times the mean"
        if nothing:
            says += f"; {nothing:.0f} got nothing in {LOOKS} looks (now {listed(idle, at_most=8)})"
        elif idle:
            says += f"; nothing in the last look: {listed(idle, at_most=8)}"
        yield Value(
            site=series.place.site,
            value=times,
            says=says,
            is_out=nothing > 0 or times >= MOST,
            how_far=times + n * (nothing > 0),
            step=series.last.step,
            rank=series.place.rank,
        )
