"""Fault drills: one of four ranks dies, stops or fails some time; what the others and the diagnosis make of it.

    python tests/drills/drill.py --runs 10 [kill stop raise full-disk slow-disk ...] [--seed 0] [--out FOLDER]

Each drill forks four ranks (tests/ranks/forks.py) that train with DDP or with all-reduces of their own, lets one act,
waits for the others, and diagnoses what they recorded. Prints one row per kind. Exit code 1 if any drill went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "ranks")]

from launch import FORKS, diagnosed, environment  # noqa: E402

JOB = Path(__file__).with_name("job.py")
KINDS = ("kill", "stop", "scheduler", "raise", "leave", "full-disk", "slow-disk")
N_RANKS = 4
USER_TIMEOUT_S = 4.0  # of the job's own process group: how long a survivor waits for a stopped rank
AGREE_S = 3.0  # agree_timeout_s: the longest that a rank may wait on Hypocenter
HANG_S = 12.0  # after so long at most a diagnosis of a hanging job names who is missing
LEEWAY_S = 5.0  # tear-down of a survivor on a busy machine: traceback, sealing, interpreter
PLACES = ("data", "forward", "backward", "update")


@dataclass(kw_only=True)
class Drill:
    """One drill and what came of it."""

    kind: str
    seed: int
    victim: int
    act_s: float = 0.0  # monotonic
    exits: dict[int, tuple[int, float]] = field(default_factory=dict)  # rank -> (code, monotonic seconds)
    errors: dict[int, float] = field(default_factory=dict)  # rank -> monotonic seconds of its first exception
    steps: dict[int, int] = field(default_factory=dict)  # rank -> last step it completed
    recorded: dict[int, list[int]] = field(default_factory=dict)
    diagnosis: dict[str, Any] = field(default_factory=dict)
    live: dict[str, Any] = field(default_factory=dict)  # diagnosis while the job hung
    stderr: str = ""

    @property
    def lost(self) -> list[dict[str, Any]]:
        """Findings that accuse a rank of being lost."""
        return lost_in(self.diagnosis)

    @property
    def is_named(self) -> bool:
        """The victim, and only it; with a disk that fails, nobody."""
        if self.kind == "slow-disk":
            return not self.lost
        if self.kind == "full-disk":
            short = [f["rank"] for f in self.diagnosis["findings"] if f["code"] == "HC322"]
            return not self.lost and short == [self.victim]
        named = [f for f in self.lost if f["rank"] == self.victim and f["count"] == 1]
        if self.kind == "scheduler":
            return len(named) == len(self.lost) == 1 and [f["rank"] for f in lost_in(self.live)] == [self.victim]
        return len(named) == len(self.lost) == 1

    @property
    def is_readable(self) -> bool:
        """Every step that a rank completed is in its recording, except behind a full disk."""
        ranks = [r for r in self.steps if not (self.kind == "full-disk" and r == self.victim)]
        return all(set(range(self.steps[r] + 1)) <= set(self.recorded.get(r, ())) for r in ranks)

    @property
    def wait_s(self) -> float:
        """The longest that a survivor took from its own exception to its end: all of it is tear-down and Hypocenter."""
        survivors = [r for r in self.errors if r != self.victim and r in self.exits]
        return max((self.exits[r][1] - self.errors[r] for r in survivors), default=0.0)

    @property
    def to_error_s(self) -> float:
        """The longest from the act to a survivor's exception."""
        return max((t - self.act_s for r, t in self.errors.items() if r != self.victim), default=0.0)

    @property
    def n_stuck(self) -> int:
        """Survivors that had to be killed, in drills where they could have ended by themselves."""
        if self.kind == "scheduler":
            return 0
        ended = {r for r, (code, _) in self.exits.items() if code != 128 + signal.SIGKILL}
        return N_RANKS - 1 - len(ended - {self.victim})

    @property
    def is_right(self) -> bool:
        """All of it."""
        return self.is_named and self.is_readable and not self.n_stuck


def lost_in(diagnosis: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings that accuse a rank of being lost."""
    return [f for f in diagnosis["findings"] if f["code"] == "HC321" and f["severity"] == "error"]


def run_drill(kind: str, seed: int, folder: Path, *, style: str = "", config: dict[str, Any] | None = None) -> Drill:
    """One drill; the moment, the victim and the way of communicating follow from the seed."""
    chance = random.Random(f"{kind}-{seed}")
    drill = Drill(kind=kind, seed=seed, victim=chance.randrange(N_RANKS))
    out = folder / f"{kind}-{style or 'any'}-{seed}"
    arguments = ["--steps", "400", "--pace", "0.01", "--timeout", str(60 if kind == "scheduler" else USER_TIMEOUT_S)]
    drawn = chance.random()  # drawn also when the style is given, so that the rest follows from the seed alone
    arguments += ["--style", style or ("plain" if drawn < 0.5 else "ddp")]
    from_outside = kind in ("kill", "stop", "scheduler") and style != "inside"
    if not from_outside:
        step = chance.randrange(3, 30) if kind != "full-disk" else chance.randrange(8, 16)
        where = chance.choice(PLACES)
        if style == "inside":  # when the ranks have found together, and where the others then wait for Hypocenter
            step, where = 40 + step, chance.choice((where, "before-update"))
        arguments += ["--victim", str(drill.victim), "--act", kind, "--step", str(step), "--where", where]
        if kind == "leave":
            arguments[-1] = "data"
        if kind.endswith("-disk"):
            arguments[1] = "25" if kind == "full-disk" else "10"
    command = [sys.executable, str(FORKS), "--nproc-per-node", str(N_RANKS), "--grace", "8", "--out", str(out)]
    command += ["--config", json.dumps(config or {}), str(JOB), *arguments]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    has_begun = False
    try:
        has_begun = _follow(job, drill, out, wait_s=chance.uniform(0.0, 1.2) if from_outside else None)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    if not has_begun:  # somebody else has taken the port
        return run_drill(kind, seed, folder / "again", style=style, config=config)
    from hypocenter.record.reader import open_run

    recording = open_run(out)
    for rank, record in recording.step_records():
        drill.recorded.setdefault(rank, []).append(record.step)
    drill.diagnosis = diagnosed(out)
    return drill


def _follow(job: subprocess.Popen[str], drill: Drill, out: Path, *, wait_s: float | None) -> bool:
    """Read what the ranks say, act when it is time, until all have ended. False if they never began."""
    pids: dict[int, int] = {}
    begun = threading.Event()
    lines: list[str] = []

    def read_steps() -> None:
        assert job.stdout is not None
        for line in job.stdout:
            if found := re.match(r"rank (\d+) step (\d+)", line):
                drill.steps[int(found[1])] = int(found[2])
                if len(drill.steps) == N_RANKS:
                    begun.set()

    def read_events() -> None:
        assert job.stderr is not None
        for line in job.stderr:
            lines.append(line)
            if found := re.match(r"rank (\d+) (pid|exit|error|acts) ([\d.]+)", line):
                rank, what, value = int(found[1]), found[2], float(found[3])
                if what == "pid":
                    pids[rank] = int(value)
                elif what == "exit":
                    drill.exits[rank] = int(value), time.monotonic()
                elif what == "error":
                    drill.errors[rank] = value
                else:
                    drill.act_s = value

    readers = [threading.Thread(target=read_steps), threading.Thread(target=read_events)]
    for reader in readers:
        reader.start()
    if wait_s is not None:
        if not begun.wait(90):
            return False
        time.sleep(wait_s)
        drill.act_s = time.monotonic()
        os.kill(pids[drill.victim], signal.SIGKILL if drill.kind == "kill" else signal.SIGSTOP)
        if drill.kind == "scheduler":  # the job hangs; somebody looks, then the scheduler ends it
            deadline = time.monotonic() + HANG_S
            while not (drill.live and lost_in(drill.live)) and time.monotonic() < deadline:
                time.sleep(0.5)
                drill.live = diagnosed(out)
            for number in (signal.SIGTERM, signal.SIGKILL):
                for pid in pids.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(0.5)
    job.wait(timeout=120)
    for reader in readers:
        reader.join()
    drill.stderr = "".join(lines)
    return begun.is_set()


def main(argv: Sequence[str]) -> int:
    """Run drills and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--style", choices=("ddp", "plain", "inside"), default="", help="all drills in this style")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    folder = args.out or Path(tempfile.mkdtemp(prefix="drills-"))
    print("drill       runs  named  readable  stuck  longest act->error  longest error->exit")
    wrong = 0
    for kind in args.kinds or KINDS:
        drills: list[Drill] = []
        for seed in range(args.seed, args.seed + args.runs):
            drill = run_drill(kind, seed, folder, style=args.style, config={"agree_timeout_s": AGREE_S})
            drills.append(drill)
            if not drill.is_right:
                wrong += 1
                said = [(f["code"], f["severity"], f["title"], f["why"]) for f in drill.diagnosis["findings"]]
                print(f"  wrong: {kind} {seed}, victim {drill.victim}: named {drill.is_named}, "
                      f"readable {drill.is_readable}, stuck {drill.n_stuck}, exits {drill.exits}: {said}")  # fmt: skip
        print(
            f"{kind:11} {len(drills):4}  {sum(d.is_named for d in drills):5}  {sum(d.is_readable for d in drills):8}"
            f"  {sum(d.n_stuck for d in drills):5}  {max(d.to_error_s for d in drills):16.2f} s"
            f"  {max(d.wait_s for d in drills):17.2f} s",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
