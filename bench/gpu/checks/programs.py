"""Programs as people write them, healthy and faulty: the same bits, nothing killed, and what is wrong is found.

Beside those made for a device (`bench/gpu/programs`), the ordinary ones of the tests, moved to it as they are.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.gpu.rows import INTERNAL, Row, _run, findings

NEEDS = ("cuda",)
OWN = Path(__file__).parents[1] / "programs"
ORDINARY = Path(__file__).parents[3] / "tests" / "programs" / "ordinary"
AT_ONCE = min(8, os.cpu_count() or 1)
EXPECTED = {
    "bf16_still": ("HC221",), "bit_flip": ("HC231",), "clip_before_unscale": ("HC211",),
    "compiled_div": ("HC102", 5), "custom_backward": ("HC253",), "data_nan": ("HC102", 9),
    "fp16_attention": ("HC102", 5), "leak": ("HC242",), "masked_row": ("HC102", 4), "no_zero_grad": ("HC232",),
    "not_in_optimizer": ("HC233",), "out_of_memory": ("HC324", 5), "sqrt": ("HC101", 5), "trainer_fp16": ("HC102",),
    "triton_kernel": ("HC102", 5),
}  # fmt: skip
"""Of each faulty one: the rule, and the step where that is to be told."""


def run(device: str, folder: Path) -> list[Row]:
    """A row for each that is not as it should be; what lacks a package, or runs on no device, is left out."""
    os.environ["DEVICE"] = device
    os.environ["PYTHONPATH"] = f"{OWN}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    healthy = [*sorted((OWN / "healthy").glob("*.py")), *_moved(device, folder)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = [row for row in pool.map(lambda path: _healthy(path, folder), healthy) if row is not None]
        faulty = [*pool.map(lambda path: _faulty(path, folder), sorted((OWN / "faulty").glob("*.py")))]
    told = [row for row in faulty if row is not None]
    return [
        *(row for row in (*rows, *told) if not row.is_ok),
        _total("healthy programs that notice nothing", rows), _total("faults that are told", told),
    ]  # fmt: skip


def _total(what: str, rows: list[Row]) -> Row:
    n_ok = sum(row.is_ok is True for row in rows)
    return Row(what=what, seen=f"{n_ok} of {len(rows)}", expected="all", is_ok=n_ok == len(rows) > 0)


def _moved(device: str, folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(ORDINARY.glob("*.py")):
        text = path.read_text()
        if "distributed" in text or not re.search(r"^import torch$", text, re.MULTILINE):
            continue
        line = f"import torch; torch.set_default_device({device!r})"
        found.append(folder / path.name)
        found[-1].write_text(re.sub(r"^import torch$", line, text, count=1, flags=re.MULTILINE))
    return found


def _healthy(path: Path, folder: Path) -> Row | None:
    alone, again = _run([sys.executable, str(path)]), _run([sys.executable, str(path)])
    if alone.code:
        return None
    out = folder / f"of-{path.stem}"
    seen = _run([sys.executable, "-m", "hypocenter", "run", "--out", str(out), str(path)])
    told = sorted({each["code"] for each in findings(out) if each.get("severity") != "note"})
    is_same = seen.code == 0 and (seen.out == alone.out or alone.out != again.out)
    said = next((line for line in seen.err.splitlines() if INTERNAL in line), "")
    shown = said or (seen.why if seen.code else " ".join(told) or ("other output" if not is_same else "nothing"))
    return Row(what=path.stem, seen=shown[:160], expected="nothing", is_ok=is_same and not told and not said)


def _faulty(path: Path, folder: Path) -> Row | None:
    out = folder / f"of-{path.stem}"
    seen = _run([sys.executable, "-m", "hypocenter", "run", "--out", str(out), str(path)])
    if "ModuleNotFoundError" in seen.err:
        return None
    code, *step = EXPECTED[path.stem]
    told = [each for each in findings(out) if each.get("severity") != "note"]
    is_found = any(each["code"] == code and (not step or each.get("step") == step[0]) for each in told)
    shown = ", ".join(f"{each['code']} at step {each.get('step')}" for each in told) or "nothing"
    return Row(what=path.stem, seen=shown[:160], expected=" at step ".join(map(str, (code, *step))), is_ok=is_found)
