"""What rounding alone does to a module: the same computation with inputs and outputs off by an ulp of the format.

As in TTrace (arXiv 2506.09280): τ = max over samples of ‖f(x∘(1 + u·r)) - f(x)‖ / ‖f(x)‖, r uniform in (-1, 1); the
output is rounded too, so that what copies its input has a floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hypocenter.compare.values.bits import Array
from hypocenter.formats import FORMATS, format_of

SAMPLES = 3


def unit(dtypes: Iterable[str]) -> float:
    """How far off a value is put: of the coarsest of some formats; others than floats do not count."""
    return max((form.noise for name in dtypes if (form := format_of(name))), default=FORMATS["float32"].noise)


def rounding_floor(run: Callable[[Array], Array], x: Array, by: float, *, is_index: bool = False) -> float:
    """Relative L2 error that perturbed inputs and outputs make; the largest of SAMPLES.

    Args:
        run: the module.
        x: its input.
        by: the unit.
        is_index: the input is whole numbers that are looked up: left alone.
    """
    rng = np.random.default_rng(0)  # the same floor every time
    y = run(x)
    found = 0.0
    for _ in range(SAMPLES):
        moved = x if is_index else x * (1.0 + by * rng.uniform(-1.0, 1.0, x.shape))
        other = run(moved)
        found = max(found, relative(other * (1.0 + by * rng.uniform(-1.0, 1.0, other.shape)), y))
    return found


def relative(y: Array, of: Array) -> float:
    """‖y - of‖ / ‖of‖; infinite where the one is not finite and the other is, or `of` is zero and `y` is not."""
    with np.errstate(all="ignore"):
        gap = np.where((y == of) | (np.isnan(y) & np.isnan(of)), 0.0, y - of)
        size = float(np.linalg.norm(np.where(np.isfinite(of), of, 0.0)))
        apart = float(np.linalg.norm(gap))
    if not np.isfinite(apart):
        return float("inf")
    return 0.0 if apart == 0.0 else apart / size if size else float("inf")
