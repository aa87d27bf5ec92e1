"""From a distance and a floor to a verdict on one row: equal, within noise, differs, or nobody can tell.

How many of many rows noise alone puts beyond their floors, and how far.

A floor is the largest of a few samples of noise. The noise of one more good run is one more sample: it passes the floor
now and then, and the more rows are looked at, the farther the worst of them lies. A limit that is right for one row is
therefore wrong for the worst of a thousand.

Measured on pairs of good runs (tests/compare/planted and tests/compare/little_gpt.py: other kernels, orders of sums and
thread counts, with the instructions of AVX-512, of AVX2 and of neither), rows that noise had reached, by how many times
their floor they were apart:

| floor of | rows | more than 1 | 1.5 | 2 | 3 | 4 |
| --- | --- | --- | --- | --- | --- | --- |
| 1 repeat | 62,220 | 8 % | 6e-3 | 8e-4 | 1e-4 | 3e-5 |
| 2 repeats | 93,330 | 7 % | 2e-3 | 2e-4 | 0 | 0 |
| 3 repeats | 62,220 | 5 % | 9e-4 | 3e-5 | 0 | 0 |
| 3 samples of calibration | 197,865 | 6e-3 | 9e-4 | 7e-5 | 5e-6 | 0 |

All tails fall at least as fast as the fourth power, and three samples are passed at least ten times more rarely than
one. Rows are not independent (what chance does to one tensor is handed on), and other machines have other noise, so the
level is set thirty times higher than measured:

    P(a row of two good runs is apart by more than r times a floor of k samples) <= RARE / k**2 * (AT / r) ** TAIL

The worst of n rows then stays below `apart_from(n, k)` in all but LEVEL of comparisons (the bound of Bonferroni, which
holds for dependent rows too), and the number of spots beyond the budget below `by_chance(n)`: groups of HANDED_ON rows
that pass it together, and whose number is Poisson's. (Without vector instructions, tensor and sequence parallelism put
the bias of the same layer of each block beyond their floors of calibration together: 4 of 549 spots.)
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hypocenter.compare.comparison import Comparison, Divergence, FloorSource, RowVerdict
from hypocenter.compare.distances.columns import NONE, Distances
from hypocenter.compare.noise import ASSUMED, NO_FLOOR, ROUNDING, ZONE, Floors
from hypocenter.compare.rows import Ints, Reals

AT = 4.0  # times the floor
RARE = 1e-3  # of good rows are apart by more than that, at most, where the floor is of one sample
TAIL = 4.0  # the power with which they become rarer
HANDED_ON = 4  # rows that chance puts beyond their floors together
LEVEL = 0.01  # of comparisons of good runs in which chance may do more than these limits say
PLAIN = 2.0  # times AT: what is nearer to a floor of one sample accuses nobody, however few rows there are
EQUAL, WITHIN, DIFFERS, CANNOT_TELL = range(4)
VERDICTS: tuple[RowVerdict, ...] = ("equal", "within-noise", "differs", "cannot-tell")
BUDGET = AT  # times a measured floor


def row_verdicts(distances: Distances, floors: Floors, budget: float, n: int) -> npt.NDArray[np.int8]:
    """Judge each row: it differs when even the low end of its error is beyond the worst that chance makes of n rows.

    Between budget × floor and that it may be a rare sample of noise: of the row alone nobody can tell. Of an assumed
    floor the budget is counted from BUDGET on, and nobody can tell up to ZONE times it.
    """
    agrees_to = noise_up_to(floors, budget)
    differs_from = agrees_to * _sure_from(floors, budget, n)
    found = np.full(len(distances.relative), CANNOT_TELL, np.int8)
    found[distances.relative <= agrees_to] = WITHIN
    found[distances.low > differs_from] = DIFFERS
    found[distances.is_equal] = EQUAL
    found[distances.depth == NONE] = CANNOT_TELL
    return found


def noise_up_to(floors: Floors, budget: float) -> Reals:
    """Return up to which error a row of two good runs counts as noise."""
    is_assumed = floors.source == ASSUMED
    scale = np.where(floors.source == NO_FLOOR, 1.0, np.where(is_assumed, budget / BUDGET, budget))
    return floors.relative * scale


def _sure_from(floors: Floors, budget: float, n: int) -> Reals:
    """Return at how many times `noise_up_to` an error is surely no noise among n rows; 1 where the floor is a bound."""
    of_samples = np.where(floors.source == ASSUMED, ZONE, apart_from(n, budget, floors.n_samples) / budget)
    return np.where((floors.source == ROUNDING) | (floors.source == NO_FLOOR), 1.0, of_samples)


def apart_from(n: int, budget: float, n_samples: Ints | int = 1) -> Reals:
    """Return how many times its floor a row must be apart to be beyond what chance does to the worst of n rows.

    Args:
        n: rows among which the worst is looked for.
        budget: times the floor; the answer is never below it.
        n_samples: of each floor, 0 or more.
    """
    k = np.maximum(n_samples, 1)
    return np.maximum(budget, AT * np.maximum(PLAIN / k, (n * RARE / k**2 / LEVEL) ** (1.0 / TAIL)))


def by_chance(n: int, budget: float) -> int:
    """Return how many of n rows chance may put beyond budget times their floors, singly or HANDED_ON together."""
    expected = n * min(1.0, RARE * (AT / budget) ** TAIL)
    return max(_at_most(expected), HANDED_ON * _at_most(expected / HANDED_ON))


def _at_most(expected: float) -> int:
    """Return the number that a Poisson count with this mean exceeds only in LEVEL of cases."""
    if expected > 1e3:  # as good as normally distributed; 2.33 deviations leave LEVEL above
        return int(expected + 2.33 * math.sqrt(expected))
    count, term = 0, math.exp(-expected)
    left = 1.0 - term
    while left > LEVEL:
        count += 1
        term *= expected / count
        left -= term
    return count


def counts_from(source: FloorSource, found: Comparison) -> float:
    """Return from how many times the floor on an error counts (as compare.verdict has it)."""
    of_samples = float(apart_from(found.n_noisy, found.budget, found.n_samples))
    of_bounds = {"assumed": found.budget / BUDGET * ZONE, "none": 1.0, "rounding": found.budget}
    return of_bounds.get(source, of_samples)


def source_of_floor(first: Divergence) -> FloorSource:
    """Return where the floor of the first divergence comes from; "assumed" when nothing says."""
    return first.row.floor.source if first.row is not None else "assumed"
