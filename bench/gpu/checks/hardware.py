"""No hardware is accused (HC341 to HC343): each step done again by a neighbour, with kernels that differ in order."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import Row, findings, train, watched

NEEDS = ("cuda", "cpu")
ACCUSING = {"HC341", "HC342", "HC343"}
CASES = {"flash attention": ("--autocast",), "scatter": ("--scatter",)}
ON_GPU = {"compiled": ("--compile", "default"), "float8": ("--fp8", "--autocast")}


def run(device: str, folder: Path) -> list[Row]:
    """On two ranks, which may share a GPU."""
    rows: list[Row] = []
    for name, options in (CASES | ON_GPU if device == "cuda" else CASES).items():
        given = ("--device", device, "--parallel", "ddp", "--steps", "6", *options)
        alone = train(*given, ranks=2)
        if alone.code:
            rows.append(Row(what=name, seen=f"not run: {alone.why}"))
            continue
        out = folder / name.replace(" ", "-")
        seen = watched(out, *given, watch=("--sdc-check", "every=1"), ranks=2)
        accused = sorted({each["code"] for each in findings(out)} & ACCUSING)
        shown = seen.why if seen.code else " ".join(accused) or "nobody accused"
        rows.append(Row(what=name, seen=shown, expected="nobody accused", is_ok=not seen.code and not accused))
    return rows
