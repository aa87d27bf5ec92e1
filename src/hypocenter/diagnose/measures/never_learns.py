"""A parameter that asks for a gradient and never got one, or only zeros.

What it means
    It is initialised, kept, sent around, perhaps decayed, and learns nothing: its module is not called, what it
    gives is not used, or every gradient on the way to it is zero. Usual of a pooling head that the loss does not
    use.

How it is decided
    Of each parameter that an optimizer holds and that asks for a gradient: norms of its gradient are recorded at
    every step. Out of range: it was exactly zero in all of at least 8 steps, or there was none while others had
    theirs.

What to do
    If it is to learn, look for a module that is made and not called, for a `detach` or `no_grad` on the way, for an
    activation that is dead (dead-units). If not, take it out or set `requires_grad = False`.

When it is wrong
    Parts that learn later by plan, and experts or embeddings that no input has asked for yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.recorded_health import Recorded

LEAST = 8  # steps


@measure("never-learns", column="idle", needs="", order=130)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each parameter; of those that learn one value for all."""
    n_with: dict[str, int] = {}
    n_live: dict[str, int] = {}
    last = 0
    for series in recorded.gradients:
        site = series.place.site
        is_live = (series.column("sumsq") > 0) | (series.column("n_nan") > 0)
        n_with[site] = n_with.get(site, 0) + len(series.steps)
        n_live[site] = n_live.get(site, 0) + int(is_live.sum())
        last = max(last, int(series.steps[-1]))
    n_steps = max(n_with.values(), default=0)
    if n_steps < LEAST:
        return
    for name in sorted({*recorded.trained, *n_with}):
        if not n_live.get(name):
            n = n_with.get(name, 0)
            says = f"its gradient was 0 in all of {n:,} steps" if n else f"it had no gradient in {n_steps:,} steps"
            yield Value(
                site=name,
                value=float(n or n_steps),
                says=says,
                is_out=n == 0 or n >= LEAST,
                how_far=float(n_steps),
                step=last,
            )
    if n_alive := sum(n > 0 for n in n_live.values()):
        yield Value(
            site="", value=0.0, says=f"{n_alive:,} parameters had gradients", is_out=False, how_far=0.0, step=last
        )
