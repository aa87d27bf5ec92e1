"""Graphs: a whole step captured, graphed callables, mode="reduce-overhead"; the same bits, nothing refused."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import Row, identity

NEEDS = ("cuda",)
CASES = {
    "whole step": ("--graph", "whole"),
    "graphed callable": ("--graph", "callable", "--dropout", "0"),
    "reduce-overhead": ("--compile", "reduce-overhead"),
}


def run(device: str, folder: Path) -> list[Row]:
    """At both levels that jobs run at."""
    rows: list[Row] = []
    for name, options in CASES.items():
        for level in ("sentinel", "modules"):
            where = folder / f"{name}-{level}".replace(" ", "-")
            rows += identity(f"{name}, {level}", where, "--device", device, *options, watch=("--level", level))
    return rows
