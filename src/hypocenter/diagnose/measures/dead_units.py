"""Units of an activation that are off for every input.

What it means
    A unit of ReLU, GELU, SiLU or the like whose input is always far on the flat side gives nothing and gets no
    gradient: it does not learn any more. Some are usual, in ReLU networks more than a few (Lu et al. 2019, arXiv
    1903.06733; Voita et al. 2023, arXiv 2309.04827). A layer that is mostly dead has lost its width.

How it is decided
    `run --health` does a micro-batch of its steps again and sees which units are on for any row: above 0 for ReLU,
    -3 for GELU, -6 for SiLU, beyond which less than 1.3 % of a gradient passes; also where models write these
    functions out. A unit counts when it was off in each of the last 4 looks, and these had 256 rows or more. Out of
    range: 10 % of the units. Of several ranks the one with the fewest is told.

What to do
    Look at the step at which it began: a large update, mostly of biases, pushes units over the edge. A lower
    learning rate or a warm-up, normalisation before the activation, or an activation with a slope on both sides
    helps. Units that are dead stay so.

When it is wrong
    Units for rare inputs are off for a long time; more looks tell. A network that is meant to be sparse has many.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.health_rows import LOOKS, UNITS
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import listed
from hypocenter.diagnose.recorded_health import Recorded, Series

MOST = 0.1  # share of units
ROWS = 256  # in LOOKS looks


@measure("dead-units", column="dead", needs="health", order=10)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each activation, over ranks the fewest."""
    best: dict[tuple[str, int], Series] = {}
    for series in recorded.looks(UNITS):
        key = series.place.site, series.place.call
        if key not in best or series.numbers[2] < best[key].numbers[2]:
            best[key] = series
    for series in best.values():
        n, off, dead, looks, rows, _, *named = series.numbers
        if looks < LOOKS or rows * LOOKS < ROWS:
            says = f"{off:.0f} of {n:.0f} units off in the last look; too few looks or rows to say more"
            yield _value(series, 0.0, says, is_out=False)
            continue
        share = dead / n
        which = f" ({listed(map(int, named))}{' and more' if dead > len(named) else ''})" if named else ""
        says = f"{dead:.0f} of {n:.0f} units of {series.last.names[0]} never on in {LOOKS} looks{which}"
        yield _value(series, share, says, is_out=share >= MOST)


def _value(series: Series, share: float, says: str, *, is_out: bool) -> Value:
    return Value(
        site=series.place.site,
        value=share,
        says=says,
        is_out=is_out,
        how_far=share,
        step=series.last.step,
        rank=series.place.rank,
    )
