"""How many of many rows noise alone puts beyond their floors, and how far.

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

from hypocenter.compare.rows import Ints, Reals

AT = 4.0  # times the floor
RARE = 1e-3  # of good rows are apart by more than that, at most, where the floor is of one sample
TAIL = 4.0  # the power with which they become rarer
HANDED_ON = 4  # rows that chance puts beyond their floors together
LEVEL = 0.01  # of comparisons of good runs in which chance may do more than these limits say
PLAIN = 2.0  # times AT: what is nearer to a floor of one sample accuses nobody, however few rows there are


def apart_from(n: int, budget: float, n_samples: Ints | int = 1) -> Reals:
    """Times its floor from which on a row is apart by more than chance does to the worst of n rows.

    Args:
        n: rows among which the worst is looked for.
        budget: times the floor; the answer is never below it.
        n_samples: of each floor, 0 or more.
    """
    k = np.maximum(n_samples, 1)
    return np.maximum(budget, AT * np.maximum(PLAIN / k, (n * RARE / k**2 / LEVEL) ** (1.0 / TAIL)))


def by_chance(n: int, budget: float) -> int:
    """How many of n rows chance may put beyond budget times their floors, each by itself or HANDED_ON together."""
    expected = n * min(1.0, RARE * (AT / budget) ** TAIL)
    return max(_at_most(expected), HANDED_ON * _at_most(expected / HANDED_ON))


def _at_most(expected: float) -> int:
    """What a count of Poisson with this mean passes in LEVEL of cases."""
    if expected > 1e3:  # as good as normally distributed; 2.33 deviations leave LEVEL above
        return int(expected + 2.33 * math.sqrt(expected))
    count, term = 0, math.exp(-expected)
    left = 1.0 - term
    while left > LEVEL:
        count += 1
        term *= expected / count
        left -= term
    return count
