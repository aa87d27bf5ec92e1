"""Programs as people write them, moved to the device as they are: the same output, nothing found, nothing killed."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.gpu.rows import INTERNAL, Row, _run, findings

NEEDS = ("cuda",)
FROM = Path(__file__).parents[3] / "tests" / "programs" / "ordinary"
AT_ONCE = min(8, os.cpu_count() or 1)


def run(device: str, folder: Path) -> list[Row]:
    """A row for each that is not as it was; those that cannot run on a device by themselves are left out."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = [*pool.map(lambda path: _row(path, device, folder), sorted(FROM.glob("*.py")))]
    bad = [row for row in rows if row is not None and not row.is_ok]
    n = sum(row is not None for row in rows)
    seen = f"{n - len(bad)} of {n}"
    return [*bad, Row(what="programs that notice nothing", seen=seen, expected=f"{n}", is_ok=not bad and n > 0)]


def _row(path: Path, device: str, folder: Path) -> Row | None:
    text = path.read_text()
    if "distributed" in text or not re.search(r"^import torch$", text, re.M):
        return None
    moved, out = folder / path.name, folder / path.stem
    line = f"import torch; torch.set_default_device({device!r})"
    moved.write_text(re.sub(r"^import torch$", line, text, count=1, flags=re.MULTILINE))
    alone, again = _run([sys.executable, str(moved)]), _run([sys.executable, str(moved)])
    if alone.code:
        return None
    seen = _run([sys.executable, "-m", "hypocenter", "run", "--out", str(out), str(moved)])
    repeats = alone.out == again.out
    told = sorted({each["code"] for each in findings(out) if each.get("severity") != "note"})
    is_same = seen.code == 0 and (seen.out == alone.out or not repeats)
    said = next((line for line in seen.err.splitlines() if INTERNAL in line), "")
    shown = said or (seen.why if seen.code else " ".join(told) or ("other output" if not is_same else "nothing"))
    return Row(what=path.stem, seen=shown[:160], expected="nothing", is_ok=is_same and not told and not said)
