"""Run every case of tests/gallery under Hypocenter and write docs/gallery.md: expected, found, right or not.

    python scripts/gallery_table.py [CASE ...]

A case is an id or its beginning; without one all run and the page is written. Exits 1 when a case is wrong.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gallery"))

import casebook

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "tests" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"

INTRO = """# The gallery

Standalone training scripts of 30 to 80 lines in `tests/gallery`: some healthy steps, then one planted
fault. Each has its answer beside it and a healthy twin (`--healthy`) on which Hypocenter must say nothing. Near misses
have no fault at all, only what a naive check takes for one; they run at three levels.

This page is made by `python scripts/gallery_table.py` from real runs. Step, micro-batch and sample count from 0.
"""


def main(chosen: list[str]) -> int:
    """Run, print a line per case, and write the page when all cases were run."""
    cases = [c for c in casebook.faults(GALLERY) if _is_chosen(c.id, chosen)]
    misses = [c for c in casebook.near_misses(GALLERY) if _is_chosen(c.id, chosen)]
    with tempfile.TemporaryDirectory() as folder:
        rows = [_fault_row(case, Path(folder)) for case in cases]
        quiet = [_silence_row(case, Path(folder)) for case in misses]
    if not chosen:
        PAGE.write_text(page(rows, quiet), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if any(row[-1] != "yes" for row in [*rows, *quiet]) else 0


def page(rows: list[list[str]], quiet: list[list[str]]) -> str:
    """The whole page."""
    n_right = sum(row[-1] == "yes" for row in rows)
    n_silent = sum(row[-1] == "yes" for row in quiet)
    return "\n".join(
        [
            INTRO,
            f"## Planted faults: {n_right} of {len(rows)} named right, with silent twins\n",
            _table(["case", "what happens", "expected", "found", "twin", "right"], rows),
            f"\n## Near misses: {n_silent} of {len(quiet)} silent\n",
            _table(["case", "what happens", "sentinel", "modules", "ops", "silent"], quiet),
            "",
        ]
    )


def _is_chosen(id: str, chosen: list[str]) -> bool:
    return not chosen or any(id.startswith(prefix) for prefix in chosen)


def _fault_row(case: casebook.Case, folder: Path) -> list[str]:
    outcome = casebook.run(case, folder / case.id)
    twin = casebook.run(case, folder / f"{case.id}-healthy", "--healthy")
    wrong = casebook.mismatches(case, outcome)
    is_silent = twin.status == "healthy" and twin.exit_code == 0 and not twin.alarms
    right = "yes" if not wrong and is_silent else "no"
    print(f"{case.id}: {right} {'; '.join(wrong)}{'' if is_silent else f' twin: {twin.status}'}", flush=True)
    title = f"{case.answer['title']} ({case.answer['reference']})"
    return [f"`{case.id}`", title, _expected(case), _found(outcome), "silent" if is_silent else twin.status, right]


def _silence_row(case: casebook.Case, folder: Path) -> list[str]:
    outcomes = [
        casebook.run(case, folder / f"{case.id}-{level}", level=level) for level in ("sentinel", "modules", "ops")
    ]
    said = ["healthy" if o.status == "healthy" and not o.exit_code and not o.alarms else _found(o) for o in outcomes]
    right = "yes" if set(said) == {"healthy"} else "no"
    print(f"{case.id}: {right} {said}", flush=True)
    text = case.script.read_text(encoding="utf-8").splitlines()[0].strip('"')
    return [f"`{case.id}`", text.removeprefix("Healthy: "), *said, right]


def _expected(case: casebook.Case) -> str:
    answer = case.answer
    line = f"{case.script.name}:{case.fault_line}" if answer.get("check_line", True) else ""
    return _where(answer, line, first=lambda value: value[0] if isinstance(value, list) else value)


def _found(outcome: casebook.Outcome) -> str:
    found = outcome.first
    if found is None:
        return outcome.status
    source = found.get("source") or {}
    line = f"{Path(source['file']).name}:{source['line']}" if source.get("file") else ""
    return _where(found, line, first=lambda value: value)


def _where(facts: dict[str, Any], line: str, first: Any) -> str:
    samples = facts.get("samples")
    parts = [
        f"step {facts.get('step')}",
        f"micro-batch {facts['microbatch']}" if facts.get("microbatch") else "",
        f"sample {', '.join(map(str, samples))}" if samples else "",
        *(f"`{first(facts[key])}`" for key in ("site", "param", "op") if facts.get(key) and first(facts[key])),
        line,
        f"**{first(facts['cause'])}**" if facts.get("cause") else "",
        f"({first(facts['confidence'])})" if facts.get("confidence") else "",
    ]
    return ", ".join(part for part in parts if part)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
