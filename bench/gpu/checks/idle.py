"""What passes between the last gradient and the first kernel of the optimizer."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import Row, train, watched

NEEDS = ("cuda", "cpu")


def run(device: str, folder: Path) -> list[Row]:
    """Measured, not judged: with `nsys profile` the same gap can be looked at."""
    given = ("--device", device, "--measure", "idle", "--steps", "40")
    alone, seen = train(*given), watched(folder / "idle", *given, watch=("--audit", "never"))
    a, b = alone.told("before_update_ms"), seen.told("before_update_ms")
    if a is None or b is None:
        return [Row(what="before the optimizer", seen=f"not run: {(seen if a is not None else alone).why}")]
    return [Row(what="before the optimizer", seen=f"{b:.3f} ms, {a:.3f} ms without", expected="measured")]
