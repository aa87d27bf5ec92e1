"""How many directions the rows have that a layer reads.

What it means
    Rows that all point the same way carry one number each: depth or training has collapsed them (Dong et al. 2021,
    arXiv 2103.03404; Garrido et al. 2022, arXiv 2210.02885). A representation that falls to a few directions has
    lost what it would be useful for, while the loss may still look well.

How it is decided
    `run --health` does a micro-batch of its steps again; of what each product with a parameter reads, up to 1,024
    rows, the exponential of the entropy of the singular values over their sum (Roy and Vetterli 2007). Rows of more
    than 64 columns are multiplied by a random matrix with 64 columns first: a result near the largest possible is a
    lower bound. Out of range: below 2 where it was 8 or more before; or below 1.1 throughout, of 8 possible or
    more.

What to do
    Find the first layer in which it is small. Look at a contrastive or self-distilled loss for a collapse, at
    attention that is uniform, at normalisation without variance, at a learning rate that is too high.

When it is wrong
    A large mean that all rows share counts as a direction of its own and hides the others: that is how much a dot
    product with them sees, and centring would tell more. A batch of equal rows has rank 1 rightly.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import LOOKS, RANK
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.recorded_health import Recorded

LEAST, ALONE, MANY = 2.0, 1.1, 8


@measure("effective-rank", column="rank", needs="health", order=110)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of what each product with a parameter reads."""
    for series in recorded.looks(RANK):
        now, possible, rows = series.numbers
        ranks = [value for _, value in series.points(0)]
        has_fallen = now < LEAST and max(ranks) >= MANY
        is_alone = len(ranks) >= LOOKS and max(ranks) < ALONE and possible >= MANY
        fell = f", was {max(ranks):.1f}" if has_fallen else ""
        yield Value(
            site=series.place.site,
            value=now,
            says=f"{now:.1f} of {possible:.0f} directions in {rows:.0f} rows{fell}",
            is_out=has_fallen or is_alone,
            how_far=possible / max(now, 1e-9),
            step=series.last.step,
            rank=series.place.rank,
        )
