"""Repeats of the baseline: how far apart two good runs are, over many steps.

Without determinism a repeat differs by what the machine leaves open. Where that is nothing (a CPU, kernels that happen
to be exact), the repeats start from weights that are off by an ulp of the format in which the model computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypocenter.align.bits import first_unequal
from hypocenter.align.context import Context
from hypocenter.align.nudged import coarsest_format, nudged_weights
from hypocenter.align.rounding import rounding
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.curve import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The baseline over many steps, and repeats of it."""

    paths: tuple[Path, ...]
    curves: tuple[Curve, ...]
    how: str  # what the repeats differ by


def repeats(context: Context, purpose: str, n: int) -> Repeats:
    """Repeats for a purpose: `frozen-repeat` or `repeat`.

    Raises:
        HypocenterError: what Recordings.get raises; initial weights that cannot be read.
    """
    side = context.plan.baseline
    given = [f"{purpose}-{number}" in side.logs for number in range(1, n + 1)]
    if any(given) or side.recordings:
        paths = [context.path("baseline", f"{purpose}-{number}") for number in range(1, n + 1)]
        return _made(paths, "as they were recorded")
    if _is_loose(context):
        paths = [context.path("baseline", f"{purpose}-{number}") for number in range(1, n + 1)]
        return _made(paths, "without determinism")
    dtype = coarsest_format(context.run("baseline", "steps"))
    size = rounding(dtype)
    weights = [nudged_weights(context, size, number) for number in range(1, n + 1)]
    paths = [
        context.path("baseline", f"{purpose}-{number}", start_from=str(path)) for number, path in enumerate(weights, 1)
    ]
    how = f"by initial weights that are off by what rounding to {dtype} makes"
    return _made(paths, f"{how}: without determinism too, this machine repeats the baseline to the bit")


def _made(paths: list[Path], how: str) -> Repeats:
    return Repeats(paths=tuple(paths), curves=tuple(read_curve(path) for path in paths), how=how)


def _is_loose(context: Context) -> bool:
    """Whether the baseline without determinism is another each time, and not only another than with it."""
    loose = context.run("baseline", "loose")
    if first_unequal(context.run("baseline", "steps"), loose) is None:
        return False
    return first_unequal(loose, context.run("baseline", "loose-2")) is not None
