"""Let two workers take turns and compare them step by step."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
N_WARM_UP = 2  # steps that fill caches and make the optimizer state


class WorkerDied(Exception):
    """A worker ended before it answered; holds the last line it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one tool costs on one workload, as ratios to plain training of the same step."""

    ratios: tuple[float, ...] = ()
    plain_ms: float = 0.0  # median CPU time of a plain step
    peak_ratio: float = 0.0  # peak resident memory
    written_kib: float = 0.0  # bytes on disk, per step
    has_same_bits: bool = False  # every loss is bit-identical to plain training
    n_parameters: int = 0
    failure: str = ""

    @property
    def median(self) -> float:
        """The median of the paired ratios."""
        return statistics.median(self.ratios)


class Worker:
    """A process that takes a training step when asked."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self.n_parameters = int(self._answer()["n_parameters"])

    def step(self) -> dict[str, Any]:
        """Take one step: its cpu_s, wall_s, loss and peak_mib."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `_answer` finds the reason
        return self._answer()

    @property
    def complaint(self) -> str:
        """What Hypocenter said about itself: a part that switched itself off costs nothing, and must not look cheap."""
        said = self._log.read_text(errors="replace").splitlines()
        return next((line for line in said if line.startswith("hypocenter: ")), "")

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
    """Pool `n_rounds` rounds of `n_pairs` pairs.

    Each round has two new processes: where one lands in memory makes it faster or slower by a few per cent for life.
    """
    rounds: list[Cost] = []
    for _ in range(n_rounds):
        cost = _round(workload, tool, n_pairs, python)
        if cost.failure:
            return cost
        rounds.append(cost)
    return replace(
        rounds[-1],
        ratios=tuple(ratio for cost in rounds for ratio in cost.ratios),
        plain_ms=statistics.median(cost.plain_ms for cost in rounds),
        has_same_bits=all(cost.has_same_bits for cost in rounds),
    )


def _round(workload: str, tool: str, n_pairs: int, python: str) -> Cost:
    """Run plain and tool in turn, `n_pairs` times after the warm-up, the one that goes first changing each time."""
    with TemporaryDirectory() as scratch:
        tool_folder = Path(scratch) / "tool"
        try:
            with (
                worker(sys.executable, workload, "plain", Path(scratch) / "plain") as plain,
                worker(python, workload, tool, tool_folder) as other,
            ):
                pairs = [_pair(plain, other, is_plain_first=i % 2 == 0) for i in range(n_pairs + N_WARM_UP)]
                complaint = other.complaint
        except WorkerDied as death:
            return Cost(failure=str(death))
        if complaint:
            return Cost(failure=complaint)
        n_bytes = sum(f.stat().st_size for f in tool_folder.rglob("*") if f.is_file())
    return _cost(pairs, n_bytes, plain.n_parameters)


def _pair(plain: Worker, other: Worker, *, is_plain_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    if is_plain_first:
        baseline = plain.step()
        return baseline, other.step()
    candidate = other.step()
    return plain.step(), candidate


def _cost(pairs: list[tuple[dict[str, Any], dict[str, Any]]], n_bytes: int, n_parameters: int) -> Cost:
    timed = pairs[N_WARM_UP:]
    last_plain, last_tool = pairs[-1]
    return Cost(
        ratios=tuple(tool["cpu_s"] / plain["cpu_s"] for plain, tool in timed),
        plain_ms=1000 * statistics.median(plain["cpu_s"] for plain, _ in timed),
        peak_ratio=last_tool["peak_mib"] / last_plain["peak_mib"],
        written_kib=n_bytes / 1024 / len(pairs),
        has_same_bits=all(plain["loss"] == tool["loss"] for plain, tool in pairs),
        n_parameters=n_parameters,
    )
