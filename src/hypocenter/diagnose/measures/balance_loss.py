"""What a loss that balances the load of experts would be: 1 where it is balanced.

What it means
    Experts times the sum, over experts, of load times mean probability: the auxiliary loss of Switch Transformers
    without its coefficient (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6). 1 is balanced, E is everything
    in one expert.

How it is decided
    From the same look as expert-load, whether or not the program has such a loss. Out of range: 2 or more.

What to do
    If the program has a balancing loss, its coefficient is too small for what the router gains by being uneven, or
    it is not added to the loss that `backward` is called on. If it balances by a bias, look whether the bias moves.

When it is wrong
    Of a small micro-batch it is noisy: with r rows for each expert chance alone makes it about 1 + 1/r.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import ROUTER
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.recorded_health import Recorded

MOST = 2.0


@measure("balance-loss", column="balance", needs="health", order=70)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each router."""
    for series in recorded.looks(ROUTER):
        n, balance = series.numbers[0], series.numbers[5]
        yield Value(
            site=series.place.site,
            value=balance,
            says=f"{balance:.2f}; 1 is balanced, {n:.0f} is one expert for all",
            is_out=balance >= MOST,
            how_far=balance,
            step=series.last.step,
            rank=series.place.rank,
        )
