"""A step that fails with 95 % of the memory taken: it is looked into, and training has what it had."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import INTERNAL, Row, findings, train, watched

NEEDS = ("cuda",)


def run(device: str, folder: Path) -> list[Row]:
    """A NaN at step 4, then a hundred steps."""
    given = ("--device", device, "--fill", "0.95", "--nan-at", "4", "--steps", "104")
    alone, seen = train(*given), watched(folder / "filled", *given)
    if alone.code:
        return [Row(what="95 % full", seen=f"not run: {alone.why}")]
    peak = f"{seen.told('peak_mib')} MiB, {alone.told('peak_mib')} without"
    more = f"{seen.told('reserved_more_mib')} MiB, {alone.told('reserved_more_mib')} without"
    found = [each for each in findings(folder / "filled") if each.get("step") == 4]
    site = str(found[0].get("site")) if found else "nothing"
    said = next((line for line in seen.err.splitlines() if INTERNAL in line), "")
    return [
        Row(what="the next 100 steps", seen=seen.why if seen.code else "run", expected="run", is_ok=not seen.code),
        Row(what="what failed", seen=said or site, expected="blocks.1", is_ok=not said and "blocks.1" in site),
        Row(what="peak", seen=peak, expected="measured"),
        Row(what="reserved after it", seen=more, expected="measured"),
    ]
