"""Plant one fault in every ordinary program, at every place, of every kind, and see what Hypocenter says of it.

    python tests/programs/sweep.py [--level LEVEL] [--rotate] [PROGRAM ...]

prints one line for each answer that is not wholly right, and a table. `--rotate` takes one kind for each place instead
of all four. What is right is read off the planting: the step that it was planted in, its line, the operator and cause
of its kind, and the module whose method the line is in, which a run of the program without a fault tells.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import planting
import program

DIED = "HC324"
PARTS = ("step", "line", "op", "cause", "site")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One planting, and what must be said of it."""

    script: Path
    place: planting.Place
    kind: planting.Kind
    step: int
    sites: tuple[str, ...]  # names that are right for the module; none where the line is in no module

    @property
    def name(self) -> str:
        """Its parameters, for people."""
        return f"{self.script.stem} {self.place.name} {self.kind.name} at step {self.step}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How the first finding compares with the planting."""

    trial: Trial
    wrong: tuple[str, ...]  # parts of PARTS, `silent` where nothing was found
    found: str  # what was said
    is_proven: bool
    status: str
    is_felt: bool  # a printed value is not finite, or the program died of it

    @property
    def is_void(self) -> bool:
        """The bad value was thrown away before it reached anything, and nobody was accused of it."""
        return not self.is_felt and self.status == "healthy"

    @property
    def is_right(self) -> bool:
        """Nothing is wrong with it."""
        return not self.wrong

    @property
    def is_false_witness(self) -> bool:
        """It says that a wrong answer is proven, or that nothing is wrong. That the program died is never wrong."""
        return (self.status == "healthy" and self.is_felt) or (
            self.is_proven and not self.is_right and not self.found.startswith(DIED)
        )


@functools.cache
def passes(script: Path) -> dict[str, Any]:
    """For each place of a program: the steps in which it is passed, and the names of the module it is in."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        note = f"from passing import noting; note = noting({str(answer)!r})"
        copy = Path(folder, script.name)
        copy.write_text(planting.watched(script.read_text(encoding="utf-8"), note), encoding="utf-8")
        done = program.run_plain(copy)
        assert done.exit_code == 0, done.stderr
        return json.loads(answer.read_text(encoding="utf-8"))


def trials(script: Path, kinds: Sequence[planting.Kind] = planting.KINDS) -> Iterator[Trial]:
    """All plantings of a program; the step goes round with place and kind."""
    text = script.read_text(encoding="utf-8")
    for number, place in enumerate(planting.places(text)):
        passed = passes(script)[place.name]
        for kind in kinds:
            steps = passed["steps"][:-1] or passed["steps"]
            step = steps[(len(script.stem) + 3 * number + planting.KINDS.index(kind)) % len(steps)]
            yield Trial(script=script, place=place, kind=kind, step=step, sites=tuple(passed["sites"]))


def rotated(scripts: Sequence[Path]) -> Iterator[Trial]:
    """One kind for each place."""
    for number, script in enumerate(scripts):
        n_kinds = len(planting.KINDS)
        for nth, trial in enumerate(trials(script)):
            if nth % n_kinds == (number + nth // n_kinds) % n_kinds:
                yield trial


def judge(trial: Trial, level: str) -> Verdict:
    """Run it and compare."""
    text = trial.script.read_text(encoding="utf-8")
    planted = planting.planted(text, trial.place, trial.kind, trial.step)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, trial.script.name)
        script.write_text(planted.text, encoding="utf-8")
        outcome = program.run_recorded(script, level, Path(folder, "run"))
    is_felt = outcome.exit_code != 0 or re.search(r"\b(nan|inf)\b", outcome.stdout) is not None
    first = next((f for f in (outcome.diagnosis or {}).get("findings", []) if f["severity"] == "error"), None)
    if first is None:
        wrong = ("silent",) if is_felt else ()
    else:
        wrong = tuple(part for part in PARTS if not _is_right(part, first, trial, planted))
    return Verdict(
        trial=trial, wrong=wrong, found=_said(first) if first else outcome.said[-300:], status=outcome.status,
        is_felt=is_felt, is_proven=bool(first) and first["confidence"] == "proven",
    )  # fmt: skip


def _is_right(part: str, found: dict[str, Any], trial: Trial, planted: planting.Planted) -> bool:
    source = found.get("source") or {}
    if part == "step":
        return found["step"] == trial.step
    if part == "line":
        return (Path(source.get("file") or "").name, source.get("line")) == (trial.script.name, planted.line)
    if part == "op":
        return (found.get("op") or "").split(".")[1:2] == [trial.kind.op]
    if part == "cause":
        return found["cause"] in trial.kind.causes
    return not trial.sites or found["site"] in trial.sites


def _said(found: dict[str, Any]) -> str:
    source = found.get("source") or {}
    keys = {key: found.get(key) for key in ("step", "site", "op", "cause", "confidence")}
    return f"{found['code']} {keys} {source.get('line')}: {source.get('text')} | {found['title']} | {found['why'][:2]}"


def main() -> None:
    """Print what is not right, then the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--level", default="sentinel")
    parser.add_argument("--rotate", action="store_true")
    options = parser.parse_args()
    scripts = [s for s in program.ORDINARY if not options.programs or s.stem in options.programs]
    chosen = rotated(scripts) if options.rotate else (t for script in scripts for t in trials(script))
    verdicts: list[Verdict] = []
    for trial in chosen:
        verdicts.append(judge(trial, options.level))
        if not verdicts[-1].is_right:
            last = verdicts[-1]
            sign = "FALSE " if last.is_false_witness else ""
            print(
                f"{sign}{trial.name}: wrong {', '.join(last.wrong)} [{last.status}] {trial.sites}\n    {last.found}",
                flush=True,
            )
    print(table(verdicts))


def table(verdicts: Sequence[Verdict]) -> str:
    """Right answers by kind, what was wrong how often, and the promise."""
    verdicts = [verdict for verdict in verdicts if not verdict.is_void]
    lines = [f"{'kind':8} {'right':>6} {'of':>4}"]
    for kind in planting.KINDS:
        of_kind = [v for v in verdicts if v.trial.kind == kind]
        lines.append(f"{kind.name:8} {sum(v.is_right for v in of_kind):6} {len(of_kind):4}")
    n_right = sum(v.is_right for v in verdicts)
    lines.append(f"{'all':8} {n_right:6} {len(verdicts):4}  {n_right / max(len(verdicts), 1):.1%}")
    lines.append(f"wrong parts: {dict(Counter(part for v in verdicts for part in v.wrong))}")
    lines.append(f"wrong and proven, or healthy: {sum(v.is_false_witness for v in verdicts)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
