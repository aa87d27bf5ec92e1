"""The same bits with and without Hypocenter: dropout, autocast, loss scaling, compiled code."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import Row, identity

NEEDS = ("cuda", "cpu")


def run(device: str, folder: Path) -> list[Row]:
    """Compiled code only on a GPU: elsewhere it takes a compiler and minutes."""
    cases: dict[str, tuple[str, ...]] = {"dropout": (), "autocast": ("--autocast",), "LSTM": ("--recurrent",)}
    if device == "cuda":
        cases |= {"loss scaling, clipping": ("--scaler", "--clip"), "compiled": ("--compile", "default")}
    rows: list[Row] = []
    for name, options in cases.items():
        for level in ("sentinel", "modules"):
            where = folder / f"{name}-{level}"
            rows += identity(f"{name}, {level}", where, "--device", device, *options, watch=("--level", level))
    return rows
