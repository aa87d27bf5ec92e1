"""Start a job of several ranks, let training with Hypocenter and without it take turns, and read what it recorded."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.distributed.job import N_TIMED, N_WARM_UP
from bench.overhead.pairs import ROOT, Worker, WorkerDied

END_S = 60  # how long a rank may take to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What recording costs a job; ratios are to plain training of the same job, pair by pair."""

    world_size: int
    cpu_ratios: tuple[float, ...] = ()  # CPU time of all ranks together
    wall_ratios: tuple[float, ...] = ()  # of the slowest rank
    plain_ms: float = 0.0  # of one step on the clock
    rank_cpu_ms: float = 0.0  # of one plain step, one rank
    extra_cpu_ms: float = 0.0  # CPU time that recording adds, of one step and one rank: median over pairs
    tap_ms: float = 0.0  # inside Hypocenter: median over steps and ranks, on the clock
    tap_share: float = 0.0  # the same as a share of the step
    n_parameters: int = 0
    failure: str = ""
    measured: str = ""  # the day

    @property
    def median(self) -> float:
        """The median of the paired ratios of CPU time."""
        return statistics.median(self.cpu_ratios)


def measure(world_size: int, size: str, n_rounds: int, n_pairs: int) -> Cost:
    """Pool `n_rounds` rounds of `n_pairs` pairs, each round a new job."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    taps: list[tuple[float, float]] = []
    n_parameters = 0
    for _ in range(n_rounds):
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            try:
                with job(world_size, size, folder) as ranks:
                    pairs += in_turn(ranks, n_pairs)
                    n_parameters, complaint = ranks.n_parameters, ranks.complaint
            except WorkerDied as death:
                return Cost(world_size=world_size, failure=str(death))
            if complaint:
                return Cost(world_size=world_size, failure=complaint)
            taps += list(_taps(folder))
    return Cost(
        world_size=world_size,
        cpu_ratios=tuple(tool["cpu_s"] / plain["cpu_s"] for plain, tool in pairs),
        wall_ratios=tuple(tool["wall_s"] / plain["wall_s"] for plain, tool in pairs),
        plain_ms=1000 * statistics.median(plain["wall_s"] for plain, _ in pairs) / N_TIMED,
        rank_cpu_ms=1000 * statistics.median(plain["cpu_s"] for plain, _ in pairs) / N_TIMED / world_size,
        extra_cpu_ms=1000 * statistics.median(t["cpu_s"] - p["cpu_s"] for p, t in pairs) / N_TIMED / world_size,
        tap_ms=statistics.median(tap for tap, _ in taps),
        tap_share=sum(tap for tap, _ in taps) / sum(step for _, step in taps),
        n_parameters=n_parameters,
        measured=f"{datetime.now(timezone.utc):%Y-%m-%d}",
    )


def in_turn(ranks: Worker, n_pairs: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Blocks (plain, tool); the one that goes first changes each time."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for i in range(n_pairs):
        order = ("plain", "tool") if i % 2 == 0 else ("tool", "plain")
        blocks = {side: ranks.block(side) for side in order}
        pairs.append((blocks["plain"], blocks["tool"]))
    return pairs


@contextmanager
def job(world_size: int, size: str, folder: Path) -> Generator[Worker, None, None]:
    """Start all ranks; what is asked of the job goes through rank 0. They end with the block."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for rank in range(world_size):
            log = stack.enter_context((folder / f"rank-{rank}.log").open("w"))
            command = [*(sys.executable, "-W", "ignore", "-m", "bench.distributed.job"),
                       *(str(rank), str(world_size), str(port), str(folder), size)]  # fmt: skip
            pipe = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(
                subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment, cwd=folder
                )
            )  # fmt: skip
        try:
            yield Worker(processes[0], folder / "rank-0.log")
        finally:
            if processes[0].stdin is not None:
                processes[0].stdin.close()
            for process in processes:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _taps(folder: Path) -> Iterator[tuple[float, float]]:
    """(time inside Hypocenter, time of the step) in ms, of every rank's timed steps."""
    from hypocenter.record.reader import open_run

    for run in sorted(folder.glob("run-*")):
        for _, record in open_run(run).step_records():
            if record.step >= N_WARM_UP:
                yield record.tap_ms, record.step_ms
