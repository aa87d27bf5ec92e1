"""How sure a router is: entropy of its probabilities, and the margin by which the last chosen wins.

What it means
    A router whose probabilities are uniform has not learned to tell rows apart, and a tiny change makes other
    choices: a margin near zero is why two good runs differ. One that is quite sure (entropy 0) gets no gradient,
    and does not change its mind any more (Zoph et al. 2022, arXiv 2202.08906).

How it is decided
    `run --health` does a micro-batch of its steps again. Mean entropy of the probabilities of each row over that of
    a uniform choice; margin: mean probability of the last expert that is chosen less that of the first that is not.
    Out of range: an entropy below 0.05.

What to do
    Add a loss on the router's logits (z-loss), compute the router in float32, lower its learning rate.

When it is wrong
    Routers with a sigmoid choose by scores that need not be probabilities: there entropy is that of their shares.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import ROUTER
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.recorded_health import Recorded

LEAST = 0.05


@measure("router-certainty", column="router", needs="health", order=60)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each router."""
    for series in recorded.looks(ROUTER):
        n, k, _, entropy, margin, *_ = series.numbers
        says = f"entropy {entropy:.3f} of a uniform choice; margin {margin:.3g} at the best {k:.0f} of {n:.0f}"
        yield Value(
            site=series.place.site,
            value=entropy,
            says=says,
            is_out=entropy < LEAST,
            how_far=1.0 - entropy,
            step=series.last.step,
            rank=series.place.rank,
        )
