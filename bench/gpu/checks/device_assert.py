"""A kernel that asserts (an index out of bounds): `hypocenter check` names it, and nothing of ours is blamed."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.rows import INTERNAL, Row, findings, watched

NEEDS = ("cuda",)


def run(device: str, folder: Path) -> list[Row]:
    """At step 3."""
    seen = watched(folder / "assert", "--device", device, "--assert-at", "3", "--steps", "6")
    told = " ".join(f"{each.get('code')} {each.get('title')}" for each in findings(folder / "assert"))
    is_named = "assert" in told.lower() or "device" in told.lower()
    said = next((line for line in seen.err.splitlines() if INTERNAL in line), "none")
    return [
        Row(what="the program", seen=f"exit code {seen.code}", expected="not 0", is_ok=seen.code != 0),
        Row(what="check", seen=told[:120] or "nothing", expected="names the device error", is_ok=is_named),
        Row(what="errors of ours", seen=said[:120], expected="none", is_ok=said == "none"),
    ]
