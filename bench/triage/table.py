"""What was found in each drill against what was done in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

VERDICTS = {"HC341": "transient", "HC342": "persistent", "HC343": "kernel", "": "none"}
FRAME = re.compile(r"(<!-- drills -->\n).*?(<!-- end of drills -->)", re.DOTALL)


def judged(plan: Any, directory: Path) -> dict[str, Any]:
    """One drill's plan and its verdict. Right is a drill of which nothing was said that is not so."""
    from bench.triage.drills import KINDS
    from hypocenter.diagnose.diagnosis import diagnose
    from hypocenter.record.reader import open_run

    diagnosis = diagnose(open_run(directory))
    found = [f for f in diagnosis.findings if f.code in VERDICTS or f.cause in ("hardware-fault", "kernel-bug")]
    first, wanted = found[0] if found else None, KINDS[plan.kind]
    has_effect = not (directory / "without-effect").exists()
    code = "" if first is None else first.code if first.code in VERDICTS else _of_cause(first.cause)
    is_right = all(_is_right(plan, f, wanted) for f in found) and bool(found) == bool(has_effect and wanted)
    return {
        "plan": asdict(plan), "code": code, "rank": None if first is None else first.rank,
        "step": None if first is None else first.step, "why": [] if first is None else list(first.why),
        "title": "" if first is None else first.title, "is_right": is_right, "has_effect": has_effect,
        "n": len(found), "first": diagnosis.findings[0].title if diagnosis.findings else "",
    }  # fmt: skip


def _of_cause(cause: str) -> str:
    return "HC343" if cause == "kernel-bug" else "HC341"


def _is_right(plan: Any, found: Any, wanted: tuple[str, ...]) -> bool:
    """Whether one finding is true: its kind, and which rank it accuses of which step."""
    code = found.code if found.code in VERDICTS else _of_cause(found.cause)
    if code not in wanted:
        return False
    if plan.kind == "kernel":
        return True
    is_in_time = found.step == plan.step if code == "HC341" else found.step >= plan.step
    return found.rank == plan.rank and is_in_time


def table(results: Sequence[dict[str, Any]]) -> str:
    """Rows: what was done; columns: what was said."""
    lines = [
        "| done | drills | without effect | transient | persistent | kernel | none | right |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in dict.fromkeys(r["plan"]["kind"] for r in results):
        rows = [r for r in results if r["plan"]["kind"] == kind]
        said = Counter(VERDICTS[r["code"]] for r in rows)
        columns = [said[name] for name in ("transient", "persistent", "kernel", "none")]
        right = sum(r["is_right"] for r in rows)
        harmless = sum(not r["has_effect"] for r in rows)
        lines.append(f"| {kind} | {len(rows)} | {harmless} | {' | '.join(map(str, columns))} | {right} |")
    wrong = [r for r in results if not r["is_right"]]
    lines += [
        f"\nnot right: {r['plan']['kind']} {r['plan']['number']} ({r['plan']['variant']}, bit {r['plan']['bit']}, "
        f"element {r['plan']['element']}, rank {r['plan']['rank']}, step {r['plan']['step']}): "
        f"{VERDICTS[r['code']]}, rank {r['rank']}, step {r['step']}; {'; '.join(r['why'])}"
        for r in wrong[:20]
    ]
    return "\n".join(lines)


def write(page: Path, text: str, *, n_ranks: int, n_drills: int, seed: int) -> None:
    """Put the table into a page, between its marks."""
    body = f"Measured by `python -m bench.triage --drills {n_drills} --ranks {n_ranks} --seed {seed}`.\n\n{text}\n"
    page.write_text(FRAME.sub(lambda m: m[1] + body + m[2], page.read_text(encoding="utf-8")), encoding="utf-8")
