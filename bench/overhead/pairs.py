"""Let training with a tool and without it take turns, and compare their costs pair by pair."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.overhead.tools import TOOLS
from bench.overhead.worker import N_TIMED, N_WARM_UP

ROOT = Path(__file__).resolve().parents[2]
_VERDICT = "; more: hypocenter check"  # in the line that ends every run


class WorkerDied(Exception):
    """A worker ended before it answered; holds the last line it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one tool costs on one workload, as ratios to plain training of the same step."""

    ratios: tuple[float, ...] = ()
    plain_ms: float = 0.0  # median CPU time of a plain step
    peak_ratio: float = 0.0  # peak resident memory
    written_kib: float = 0.0  # bytes on disk, per step
    has_same_bits: bool = False  # every loss, and the parameters in the end, are bit-identical to plain training
    n_parameters: int = 0
    failure: str = ""
    measured: str = ""  # the day

    @property
    def median(self) -> float:
        """The median of the paired ratios."""
        return statistics.median(self.ratios)


class Worker:
    """A process that takes a block of training steps when asked."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self.n_parameters = int(self._answer()["n_parameters"])

    def block(self, side: str) -> dict[str, Any]:
        """Take a block of steps, `plain` or with the `tool`: its cpu_s, losses and peak_mib."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{side}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `_answer` finds the reason
        return self._answer()

    @property
    def complaint(self) -> str:
        """What Hypocenter said about itself: a part that switched itself off costs nothing, and must not look cheap."""
        said = self._log.read_text(errors="replace").splitlines()
        own = [line for line in said if line.startswith("hypocenter: ") and _VERDICT not in line]
        return next(iter(own), "")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise WorkerDied(said[-1] if said else "it said nothing")
        return json.loads(line)


@contextmanager
def worker(python: str, workload: str, tool: str, folder: Path) -> Iterator[Worker]:
    """Start a worker, and end it with the block."""
    folder.mkdir()
    log = folder.with_suffix(".log")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [python, "-W", "ignore", "-m", "bench.overhead.worker", workload, tool, str(folder)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=folder,
        )
    with process:
        try:
            yield Worker(process, log)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def compare(workload: str, tool: str, n_rounds: int, n_pairs: int, python: str = sys.executable) -> Cost:
    """Pool `n_rounds` rounds of `n_pairs` pairs, in new processes each round.

    A tool that comes off again takes turns with plain training in one process: where a process lands in memory makes it
    faster or slower by a few per cent for life, which is more than the cheap tools cost. What it does to memory, disk
    and losses is seen in two processes of their own, as for the tools that stay on.
    """
    apart = _apart(workload, tool, n_pairs=1 if TOOLS[tool].comes_off else n_pairs, python=python)
    if apart.failure or not TOOLS[tool].comes_off:
        more = [] if apart.failure else [_apart(workload, tool, n_pairs, python) for _ in range(n_rounds - 1)]
        return _pooled([apart, *more])
    rounds = [_together(workload, tool, n_pairs, python) for _ in range(n_rounds)]
    pooled = _pooled(rounds)
    return replace(
        pooled, peak_ratio=apart.peak_ratio, written_kib=apart.written_kib, has_same_bits=apart.has_same_bits
    )


def _apart(workload: str, tool: str, n_pairs: int, python: str) -> Cost:
    """Plain and tool in turn, each in its process, from the same start: losses and weights must be the same too."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tool"
        try:
            with (
                worker(sys.executable, workload, "plain", Path(scratch) / "plain") as plain,
                worker(python, workload, tool, folder) as other,
            ):
                pairs = _pairs(plain, other, n_pairs)
                complaint = other.complaint
        except WorkerDied as death:
            return Cost(failure=str(death))
        n_bytes = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    last_plain, last_tool = pairs[-1]
    return replace(
        _cost(pairs, plain.n_parameters, complaint),
        peak_ratio=last_tool["peak_mib"] / last_plain["peak_mib"],
        written_kib=n_bytes / 1024 / (N_WARM_UP + N_TIMED * n_pairs),
        has_same_bits=_same_bits(pairs),
    )


def _together(workload: str, tool: str, n_pairs: int, python: str) -> Cost:
    """Plain and tool in turn in one process, which attaches the tool and takes it off again."""
    with TemporaryDirectory() as scratch:
        try:
            with worker(python, workload, tool, Path(scratch) / "both") as both:
                pairs = _pairs(both, both, n_pairs)
                return _cost(pairs, both.n_parameters, both.complaint)
        except WorkerDied as death:
            return Cost(failure=str(death))


def _pairs(plain: Worker, other: Worker, n_pairs: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Blocks (plain, tool); the one that goes first changes each time."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for i in range(n_pairs):
        if i % 2 == 0:
            baseline = plain.block("plain")
            pairs.append((baseline, other.block("tool")))
        else:
            candidate = other.block("tool")
            pairs.append((plain.block("plain"), candidate))
    return pairs


def _cost(pairs: list[tuple[dict[str, Any], dict[str, Any]]], n_parameters: int, complaint: str) -> Cost:
    return Cost(
        ratios=tuple(tool["cpu_s"] / plain["cpu_s"] for plain, tool in pairs),
        plain_ms=1000 * statistics.median(plain["cpu_s"] for plain, _ in pairs) / N_TIMED,
        n_parameters=n_parameters,
        failure=complaint,
        measured=f"{datetime.now(timezone.utc):%Y-%m-%d}",
    )


def _same_bits(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    return all(plain[what] == tool[what] for plain, tool in pairs for what in ("losses", "weights"))


def _pooled(rounds: list[Cost]) -> Cost:
    for cost in rounds:
        if cost.failure:
            return cost
    return replace(
        rounds[-1],
        ratios=tuple(ratio for cost in rounds for ratio in cost.ratios),
        plain_ms=statistics.median(cost.plain_ms for cost in rounds),
        has_same_bits=all(cost.has_same_bits for cost in rounds),
    )
