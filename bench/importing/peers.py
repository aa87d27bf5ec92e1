"""msprobe's dumps of planted faults, read by msprobe and by us: `python -m bench.importing peers [--write]`.

Runs `msprobe_answers.py` in the Python that MSPROBE_PYTHON names, imports each of its dumps, asks `check` or
`diff`, and prints a page with both answers side by side; `--write` puts it to docs/importing-peers.md. Exit code 1 when
one of ours is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.importing.truths import LEVELS, LEVELS_OF_PAIRS, OVERFLOWS, PAIRS, Truth
from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.importing.catalogue import import_dump
from hypocenter.record.reader import RecordedRun, open_run

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "importing-peers.md"
SECONDS = 1800.0  # for all dumps and answers of msprobe
HEAD = """\
# Dumps of msprobe: its own analysis and ours

Written by `python -m bench.importing peers --write`; do not edit.

A small GPT with one planted fault is dumped by mindstudio-probe 26.2 (PyTorch on the CPU, statistics, every step). Each
dump is then read by msprobe's own commands, and by `hypocenter import` with `check` or `diff`. The programs are
`bench/importing/faulty_gpt.py` and `msprobe_answers.py`; what is right stands in `truths.py`. ✔ names the culprit, or
nothing where nothing is wrong; ✘ names something else; – names nothing though there is a fault.

## Values that are not finite

`msprobe overflow_check` looks at one step; shown is its answer of the first step for which it has one.

| fault | level | | `msprobe overflow_check` | | `hypocenter import`, `check` |
|---|---|---|---|---|---|"""
TAIL = """
Where ours names nothing the level does not hold it: L0 has no code outside modules, so neither the logarithm nor the
root in the loss. That gradients are not finite, and of which rank, is said; those of the logarithm are finite."""
MARKS = {"right": "✔", "wrong": "✘", "none": "–"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool said of a dump: its words, and whether they are right, wrong or name nothing."""

    text: str
    verdict: str


def main(argv: list[str]) -> int:
    """Dump, ask both, print the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.importing peers", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dumps", type=Path, help="what msprobe_answers.py has made already")
    wanted = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        made = wanted.dumps or Path(folder) / "msprobe"
        if not wanted.dumps:
            ask_msprobe(made)
        told = json.loads((made / "answers.json").read_text(encoding="utf-8"))
        runs = Runs(made / "dumps", Path(folder) / "runs")
        rows = list(overflow_rows(told, runs)), list(pair_rows(told, runs))
    page = "\n".join(in_words(*rows)) + "\n"
    print(page)
    if wanted.write:
        PAGE.write_text(page, encoding="utf-8")
    return int(any(ours.verdict == "wrong" for group in rows for *_, ours in group))


def ask_msprobe(out: Path, *options: str) -> None:
    """Make the dumps and, without other options, the tool's answers.

    Raises:
        SystemExit: there is no such Python, or a dump could not be made.
    """
    python = os.environ.get("MSPROBE_PYTHON", sys.executable)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(HERE / "msprobe_answers.py"), str(out), *options],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{python} made no dumps (it needs torch and mindstudio-probe): {done.stderr[-500:]}")


class Runs:
    """Imported dumps, each once."""

    def __init__(self, dumps: Path, out: Path) -> None:
        self._dumps, self._out = dumps, out
        self._held: dict[tuple[str, str], RecordedRun] = {}
        out.mkdir(parents=True, exist_ok=True)

    def of(self, case: str, level: str) -> RecordedRun:
        """The run made of the dump of a case."""
        if (case, level) not in self._held:
            done = import_dump(self._dumps / case / level, str(self._out / f"{case}-{level}"))
            self._held[case, level] = open_run(done.directory)
        return self._held[case, level]


def overflow_rows(told: dict[str, Any], runs: Runs) -> Iterator[tuple[Truth, str, Answer, Answer]]:
    """Truth, level, msprobe's and our answer."""
    for truth in OVERFLOWS:
        for level in LEVELS:
            yield truth, level, overflow_check(told, truth, level), check(runs.of(truth.case, level), truth)


def overflow_check(told: dict[str, Any], truth: Truth, level: str) -> Answer:
    """What the tool names in the first step in which it names something."""
    for name in sorted(key for key in told if key.startswith(f"{truth.case}/{level}/")):
        named = [words for words in told[name] if words.startswith("rank_")]
        if named:
            step = name.rpartition("step")[2]
            return judged(f"step {step}: {'; '.join(named)}", truth)
    return judged("Cannot find any anomaly node", truth, names_nothing=True)


def check(run: RecordedRun, truth: Truth) -> Answer:
    """The first finding of `hypocenter check`."""
    found = diagnose(run)
    if not found.findings:
        return judged(found.status, truth, names_nothing=True)
    first = found.findings[0]
    place = " ".join(word for word in (first.param or first.site, first.op) if word and word not in first.title)
    line = f" ({Path(first.source.file).name}:{first.source.line})" if first.source else ""
    where = f"`{place}`, " if place else ""
    why = "".join(f"; {text}" for text in first.why if first.cause == "bad-parameter")
    words = f"step {first.step}: rank_{first.rank}: {where}{first.title}{line}; {first.cause}{why}"
    return judged(words, truth, names_nothing=first.code != "HC104")


def pair_rows(told: dict[str, Any], runs: Runs) -> Iterator[tuple[Truth, str, Answer, Answer, Answer]]:
    """Truth, level, answers of `msprobe compare`, of the same with -da, and ours."""
    for truth in PAIRS:
        for level in LEVELS_OF_PAIRS:
            yield truth, level, compare(told, truth, level), compare_da(told, truth, level), diff(runs, truth, level)


def compare(told: dict[str, Any], truth: Truth, level: str) -> Answer:
    """The first row that does not pass, in the first step that has one."""
    for step in (0, 1):
        answer = told[f"{truth.case}/{level}/step{step}"]
        if "said" in answer:
            return judged(answer["said"], truth, names_nothing=True)
        if answer["first"]:
            counts = ", ".join(f"{n:,} {name}" for name, n in answer["results"].items() if name != "pass")
            why = answer["why"].strip('[]"')
            return judged(f"step {step}: `{answer['first']}`: {why} ({counts})", truth)
    return judged("all pass", truth, names_nothing=True)


def compare_da(told: dict[str, Any], truth: Truth, level: str) -> Answer:
    """The call that it names, in the first step in which it names one."""
    for step in (0, 1):
        answer = told[f"{truth.case}/{level}/step{step}/-da"]
        if answer.get("names"):
            return judged(f"step {step}: `{answer['names'][0]}`", truth)
    return judged("Cannot find any diff node", truth, names_nothing=True)


def diff(runs: Runs, truth: Truth, level: str) -> Answer:
    """The first difference of `hypocenter diff`."""
    found = compare_runs(runs.of("good", level), runs.of(truth.case, level))
    first = found.first
    if first is None:
        return judged(found.status, truth, names_nothing=True)
    fit = f"; {found.fit.text}" if found.fit else ""
    return judged(f"step {first.step}: `{first.site}` {first.port}, {first.phase}{fit}", truth)


def judged(text: str, truth: Truth, *, names_nothing: bool = False) -> Answer:
    """The words with their verdict: of a healthy program, only to name nothing is right."""
    if names_nothing:
        return Answer(text=text, verdict="none" if truth.right else "right")
    return Answer(text=text, verdict="right" if any(pattern.search(text) for pattern in truth.right) else "wrong")


def in_words(overflows: list[Any], pairs: list[Any]) -> Iterator[str]:
    """The page."""
    yield HEAD
    for truth, level, theirs, ours in overflows:
        yield (
            f"| {truth.words} | {level} | "
            + " | ".join(f"{MARKS[a.verdict]} | {a.text}" for a in (theirs, ours))
            + " |"
        )
    yield from ("", f"Right: msprobe {score(overflows, 2)}, hypocenter {score(overflows, 3)}.", "", "## Two runs", "")
    yield "Both of two steps. The good run is the same program without the fault."
    yield from ("", "| difference | level | | `msprobe compare` | | `compare -da` | | `hypocenter import`, `diff` |")
    yield "|---|---|---|---|---|---|---|---|"
    for truth, level, *answers in pairs:
        yield f"| {truth.words} | {level} | " + " | ".join(f"{MARKS[a.verdict]} | {a.text}" for a in answers) + " |"
    yield ""
    scores = [score(pairs, column) for column in (2, 3, 4)]
    yield f"Right: `msprobe compare` {scores[0]}, with `-da` {scores[1]}, hypocenter {scores[2]}."
    yield TAIL


def score(rows: list[Any], column: int) -> str:
    """How many of a column are right."""
    return f"{sum(row[column].verdict == 'right' for row in rows)} of {len(rows)}"
