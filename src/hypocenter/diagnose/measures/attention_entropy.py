"""How spread attention is, by head: entropy over that of a uniform choice.

What it means
    1: a head looks at all places alike; 0: at one. When the entropy of many heads falls to nothing, training
    becomes unstable (Zhai et al. 2023, arXiv 2303.06296): attention is a hard choice, whose gradient is nearly
    zero, or huge when it changes.

How it is decided
    `run --health` does a micro-batch of its steps again. The entropy of each query's attention is divided by the
    logarithm of the number of places that it may attend to; queries with one place are left out, and the mean is
    taken for each head. Out of range: below 0.02 in half of the heads or more.

What to do
    As for attention-logits: normalise queries and keys, lower the learning rate, a longer warm-up.

When it is wrong
    Heads that look at the token before, or at the first one, have next to no entropy and are healthy; a layer of
    which half the heads do so is rare.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import ENTROPY
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.recorded_health import Recorded

LEAST = 0.02


@measure("attention-entropy", column="entropy", needs="health", order=40)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each attention the head with the least."""
    for series in recorded.looks(ENTROPY):
        heads = series.numbers
        head = min(range(len(heads)), key=lambda i: heads[i])
        n_below = sum(value < LEAST for value in heads)
        of = f"of head {head} " if len(heads) > 1 else ""
        says = f"the entropy {of}is {heads[head]:.3f} of a uniform one"
        says += f"; {n_below} of {len(heads)} below {LEAST}" if n_below else ""
        yield Value(
            site=series.place.site,
            value=heads[head],
            says=says,
            is_out=2 * n_below >= len(heads) > 0 < n_below,
            how_far=1.0 - heads[head],
            step=series.last.step,
            rank=series.place.rank,
        )
