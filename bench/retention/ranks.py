"""`python -m bench.retention.ranks --drills 50`: 8 gloo ranks that ship to a faulty store, and what happens to them.

In turn the leader of the node is killed, a rank dies and all are started again, and the store alone is bad. Each drill
has to end, and `check` to say what happened and accuse nobody else, of the recording here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.retention.store import FAULTS, Store, served
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Diagnosis
from hypocenter.record.reader import open_run

N_RANKS, N_STEPS, LIMIT_S = 8, 40, 600.0
WHAT = ("leader killed", "rank replaced", "store bad")
LOST = "HC321"
# torchrun's own store outlives the ranks, and Gloo then connects to the addresses of the dead (torch 2.13).
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def main() -> int:
    """Drill, say what was wrong; 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m bench.retention.ranks", description=__doc__)
    parser.add_argument("--drills", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    asked = parser.parse_args()
    wrong = 0
    with served() as store, tempfile.TemporaryDirectory(prefix="hypocenter-drills-") as folder:
        for number in range(asked.first, asked.first + asked.drills):
            began, what = time.perf_counter(), WHAT[number % len(WHAT)]
            said = drill(Path(folder) / str(number), number, what, store)
            wrong += bool(said)
            print(f"{number}: {what}, {time.perf_counter() - began:.0f} s: {said or 'right'}", flush=True)
    print(f"{asked.drills - wrong} of {asked.drills} right; the store failed {dict(store.done)}")
    return int(wrong > 0)


def drill(out: Path, number: int, what: str, store: Store) -> str:
    """One job; what is wrong with its end or its verdict, in words."""
    store.rng = random.Random(number)
    store.faults = {name: store.rng.choice((0.1, 0.4)) for name in FAULTS}
    victim = {"leader killed": 0, "rank replaced": store.rng.randrange(N_RANKS)}.get(what, -1)
    step = store.rng.randrange(5, N_STEPS - 5)
    again = ["--max-restarts", "1"] if what == "rank replaced" else []
    command = [
        *(sys.executable, "-m", "hypocenter", "run", "--out", str(out), "--ship", f"s3://runs/ranks-{number}"),
        *("torchrun", "--standalone", "--nproc-per-node", str(N_RANKS), *again),
        *(str(Path(__file__).with_name("victim.py")), json.dumps({"steps": N_STEPS, "victim": victim, "at": step})),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | NEW_STORE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it was not over after {LIMIT_S:.0f} s"
    is_over = done.returncode == 0
    if is_over is (what == "leader killed"):
        return f"the job ended with {done.returncode}: {done.stderr[-200:]}"
    return judged(diagnose(open_run(out)), what, victim)


def judged(diagnosis: Diagnosis, what: str, victim: int) -> str:
    """What is wrong with a verdict, in words."""
    alarms = [each for each in diagnosis.findings if each.severity != "note"]
    told = [each for each in alarms if each.code == LOST and each.rank == victim]
    others = [f"{each.code} of rank {each.rank}: {each.title}" for each in alarms if each not in told]
    if others:
        return f"accused: {'; '.join(others)}"
    if what == "leader killed" and not told:
        return f"the death of rank {victim} is not told"
    if what == "rank replaced" and not any("attempt" in note for note in diagnosis.notes):
        return "that the ranks were started again is not told"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
