"""`python -m bench.view.dead [--nodes N] [--rounds N]`: how soon the death of one of 10,000 ranks is named by `view`.

The job is one of 1,250 nodes of 8 ranks that average their gradients over all ranks. One node is real: 8 processes
with their files, and `hypocenter.view.node` beside them. What the others would write, one process writes into real
node files (`stand_ins.py`). One rank is killed, and all others wait for it inside an all-reduce.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.view.__main__ import _cookie, _get, _peak_mib
from bench.view.stand_ins import PER_NODE
from bench.view.verdicts import SERVE
from hypocenter.nouns import StepRecord
from hypocenter.record.layout import NODES_FOLDER, rank_directory
from hypocenter.record.node_file import read_node
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer
from hypocenter.view.runs import name_of

LIMIT_S, WATCHED_S = 5.0, 10.0
N_CURVES = 16  # ranks with steps of their own: those that `view` reads for curves


def main() -> int:
    """Kill one rank in each round; exit with 1 where it was named late, or another was."""
    wanted = _arguments()
    n_ranks, wrong = wanted.nodes * PER_NODE, 0
    victim = n_ranks // 2 + 3
    for _ in range(wanted.rounds):
        with tempfile.TemporaryDirectory(prefix="hypocenter-dead-", dir=wanted.folder) as folder:
            seconds, text = told(Path(folder), n_ranks, victim, is_stopped=wanted.stopped)
        wrong += seconds > LIMIT_S or f"rank {victim} " not in text
        print(f"rank {victim} of {n_ranks:,} is named after {seconds:.1f} s: {text}", flush=True)
    return int(wrong > 0)


def told(folder: Path, n_ranks: int, victim: int, *, is_stopped: bool) -> tuple[float, str]:
    """Return after how many seconds the page tells of a death, and what it says."""
    run, mark, first = folder / "run", folder / "died", victim - victim % PER_NODE
    _write(run, n_ranks)
    with ExitStack() as all_there:

        def start(*words: str) -> subprocess.Popen[str]:
            return all_there.enter_context(_process([sys.executable, *words]))

        numbers = [(str(rank), str(n_ranks)) for rank in range(first, first + PER_NODE)]
        ranks = [start("-m", "bench.view.stand_ins", "rank", str(run), *pair) for pair in numbers]
        start("-m", "hypocenter.view.node", str(run), str(first), str(PER_NODE), str(os.getpid()))
        start("-m", "bench.view.stand_ins", "nodes", str(run), *numbers[0])
        time.sleep(5.0)
        server = start("-c", SERVE, str(run))
        assert server.stdout is not None
        port, token = server.stdout.readline().split()
        page = Page(int(port), token, run)
        began_s = time.monotonic()
        while f"all {n_ranks:,} ranks" not in page.part("ranks"):
            time.sleep(0.1)
        read_s, read_cpu_s = time.monotonic() - began_s, _cpu_s(server.pid)
        time.sleep(5.0)
        cpu_s, ends_s = _cpu_s(server.pid), time.monotonic() + WATCHED_S
        while time.monotonic() < ends_s:
            page.part("finding")
            time.sleep(1.0)
        idle_s = _cpu_s(server.pid) - cpu_s
        ranks[victim - first].send_signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
        mark.touch()
        began_s, cpu_s, written_s = time.monotonic(), _cpu_s(server.pid), 0.0
        while "HC3" not in (text := page.part("finding")) and time.monotonic() - began_s < 120:
            note = read_node(run / NODES_FOLDER / f"{first:05d}")
            if not written_s and note is not None and note[1].ranks[victim].life in ("gone", "stopped"):
                written_s = time.monotonic() - began_s
            time.sleep(0.1)
        seconds = time.monotonic() - began_s
        print(
            f"all ranks are seen after {read_s:.1f} s ({read_cpu_s:.1f} s of the server's CPU); then it takes "
            f"{idle_s / WATCHED_S:.2f} s of CPU a second, and {_cpu_s(server.pid) - cpu_s:.1f} s until it names one, "
            f"which its node has written after {written_s:.1f} s; "
            f"at most {_peak_mib(server.pid):.0f} MiB",
            flush=True,
        )
        return seconds, text[:150]


class Page:
    """The page of a run, without its tags."""

    def __init__(self, port: int, token: str, run: Path) -> None:
        self._port, self._cookie = port, _cookie(port, token)
        self._path = f"/run/{name_of(run.resolve())}/part/"

    def part(self, name: str) -> str:
        """Return the text of a part."""
        data = _get(self._port, self._path + name, self._cookie)[1]
        return " ".join(re.sub(r"<(?!svg)[^>]+>", " ", data.decode()).split())


def _write(run: Path, n_ranks: int) -> None:
    start_run(run, ["python", "train.py"], {"level": "sentinel"}, n_ranks, {"hypocenter": "0"})
    for rank in range(n_ranks):
        rank_directory(run, rank).mkdir()
    for rank in range(0, n_ranks, max(1, n_ranks // N_CURVES)):
        writer = Writer(run, rank=rank, warn=print)
        for step in range(30):
            writer.write([], StepRecord(step=step, loss=3.0 / (step + 1), grad_norm=1.0, step_ms=2000.0))


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--stopped", action="store_true", help="stop the rank by a signal, in place of killing it")
    parser.add_argument("--folder", help="folder for the recording")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
