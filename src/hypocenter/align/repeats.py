"""Repeats of the baseline: how far apart two good runs are, over many steps.

Without determinism a repeat differs by what the machine leaves open. Where that is nothing (a CPU, kernels that happen
to be exact), the repeats start from weights that are off by an ulp of the format in which the model computes.

The baseline's initial weights, each off by up to an ulp of the format that the model computes in.

What two good runs may differ by is rounding; a run that starts an ulp away has that, and then goes its own way.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.align.context import Context
from hypocenter.align.fingerprint import digest_of
from hypocenter.align.rounding import rounding, unit
from hypocenter.compare.comparison import RowComparison
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.curve import Curve
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import Box, Tensor
from hypocenter.compare.weights.writer import write_weights
from hypocenter.record.reader import RecordedRun

_SHARD_BYTES = 4 << 30
_PLAIN = ("float64", "float32", "float16")  # formats that NumPy has


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The baseline over many steps, and repeats of it."""

    paths: tuple[Path, ...]
    curves: tuple[Curve, ...]
    how: str  # what the repeats differ by


def repeats(context: Context, purpose: str, n: int) -> Repeats:
    """Make the repeats for a purpose, `frozen-repeat` or `repeat`, or find them.

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
    """Return whether two runs without determinism differ from each other, and not only from a deterministic one."""
    loose = context.run("baseline", "loose")
    if first_unequal(context.run("baseline", "steps"), loose) is None:
        return False
    return first_unequal(loose, context.run("baseline", "loose-2")) is not None


def first_unequal(once: RecordedRun, again: RecordedRun) -> RowComparison | None:
    """Return the first row, in step and execution order, that is not equal; None if both runs agree in all."""
    for step in sorted({record.step for _, record in once.step_records()}):
        found = compare_runs(once, again, options=Options(budget=1.0, is_wanted=step.__eq__))
        unequal = [row for row in found.rows if row.verdict != "equal" and _is_apart(row)]
        if unequal:
            return min(unequal, key=lambda row: (row.microbatch, row.order))
    return None


def _is_apart(row: RowComparison) -> bool:
    return row.distance is not None and row.distance.relative != 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudged(Tensor):
    """A tensor whose elements are off by up to `size`, relative; the same at each reading."""

    of: Tensor
    size: float
    seed: tuple[int, ...]

    def read(self, box: Box) -> NDArray[Any]:
        """Read the bits of a box, nudged."""
        raw = self.of.read(box)
        chance = np.random.default_rng([*self.seed, *(start for start, _ in box)])
        if self.dtype in _PLAIN:
            by = 1.0 + self.size * chance.uniform(-1.0, 1.0, raw.shape)
            return (raw.astype(np.float64) * by).astype(raw.dtype)
        up = chance.integers(-1, 2, raw.shape)  # bits of bfloat16 are in the order of magnitudes: one on is one ulp
        return np.where((raw & 0x7FFF) > 0, raw + up.astype(raw.dtype), raw).astype(raw.dtype)


def nudged_weights(context: Context, size: float, number: int) -> Path:
    """Write a checkpoint with the baseline's weights, nudged; return its path. It is written once."""
    source = context.path("baseline", "steps")
    folder = context.recordings.folder / f"nudged-{digest_of(source.name, size)}-{number}"
    if folder.is_dir():
        return folder
    names = _trained(context.run("baseline", "steps"))
    tensors = {
        name: _nudged(tensor, size, (number, zlib.crc32(name.encode()))) if name in names else tensor
        for name, tensor in read_checkpoint(source).tensors.items()
    }
    unfinished = folder.with_name(f"unfinished-{folder.name}")
    _remove(unfinished)
    write_weights(tensors, unfinished, max_shard_bytes=_SHARD_BYTES)
    unfinished.rename(folder)
    return folder


def coarsest_format(run: RecordedRun) -> str:
    """Return the format with the fewest digits among the outputs of modules in the first step."""
    rows = run.readings(steps=[0], phase="forward", rank=run.ranks[0])
    found = {row.dtype for row in rows if row.port.startswith("out") and "float" in row.dtype}
    return max(found, key=unit, default="float32")


def _nudged(tensor: Tensor, size: float, seed: tuple[int, ...]) -> Tensor:
    if tensor.dtype not in (*_PLAIN, "bfloat16"):
        return tensor
    return Nudged(shape=tensor.shape, dtype=tensor.dtype, of=tensor, size=size, seed=seed)


def _trained(run: RecordedRun) -> set[str]:
    facts = run.facts()
    return {
        f"{module.path}.{name}".strip(".")
        for module in (facts.modules if facts is not None else ())
        for name, tensor in module.parameters.items()
        if tensor.trained
    }


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
