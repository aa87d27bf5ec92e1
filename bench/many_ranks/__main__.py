"""Run the benchmark: `python -m bench.many_ranks [--rows N ...] [--steps N] [--on WHAT ...] [--healthy]`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.job_of_512.measure import Measured, measured
from bench.many_ranks.rewrite import Faults, Mesh, Rewriting, write_job

N_REAL, N_STEPS_REAL = 8, 64
_CODES = {"HC301": "drift", "HC305": "shared data", "HC306": "learning rate", "HC313": "NaN", "HC322": "cut"}


def main() -> int:
    """Record, rewrite, read; print a table; exit with 1 when a planted fault is not found."""
    wanted = _arguments()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="hypocenter-many-") as folder:
        real = Path(wanted.real) if wanted.real else _recorded(Path(folder))
        titles = ["rows", "ranks", "on", "seconds", "CPU, s", "of workers, s", "times as fast", "peak, MiB"]
        print("|", " | ".join([*titles, "rows a second", "missed"]), "|")
        print("|---" * (len(titles) + 2) + "|")
        for n_rows in wanted.rows:
            run = Path(folder) / "run"
            shutil.rmtree(run, ignore_errors=True)
            mesh = _mesh(n_rows, wanted.steps)
            faults = Faults() if wanted.healthy else Faults.six(mesh, wanted.steps)
            write_job(run, Rewriting(source=real, mesh=mesh, n_steps=wanted.steps, faults=faults), wanted.processes)
            alone = 0.0
            for on in wanted.on:
                cost = measured("check", str(run), *(("--on", on) if on != "here" else ()))
                alone = cost.seconds if on == "here" else alone
                wrong += _row(run, mesh, on, cost, alone, is_healthy=wanted.healthy)
    return 1 if wrong else 0


def _row(run: Path, mesh: Mesh, on: str, cost: Measured, alone: float, *, is_healthy: bool) -> int:
    diagnosis = json.loads((run / "diagnosis.json").read_text())
    told = {f["code"] for f in diagnosis["findings"]} | (
        {"missing"} if "left no recording" in str(diagnosis) else set()
    )
    missed = (
        [] if is_healthy else [what for code, what in {**_CODES, "missing": "missing rank"}.items() if code not in told]
    )
    alarms = [f["title"] for f in diagnosis["findings"] if f["severity"] != "note"] if is_healthy else []
    n = diagnosis["n_rows"]
    of_workers = f"{cost.workers_cpu_s:.1f}" if on != "here" else "-"
    print(
        f"| {n:,} | {mesh.n_ranks:,} | {on} | {cost.seconds:.1f} | {cost.cpu_s:.1f} | {of_workers} "
        f"| {alone / cost.seconds:.2f} | {cost.peak_mib:.0f} | {n / cost.seconds:,.0f} "
        f"| {', '.join([*missed, *alarms]) or '-'} |",
        flush=True,
    )
    return len(missed) + len(alarms)


def _mesh(n_rows: int, n_steps: int) -> Mesh:
    """A rank writes some 40 rows a step."""
    n_ranks = max(16, n_rows // (40 * n_steps))
    tp = 8 if n_ranks >= 512 else 2
    pp = 16 if n_ranks >= 2048 else 4 if n_ranks >= 64 else 2
    return Mesh(tp=tp, pp=pp, dp=max(4, n_ranks // (tp * pp)))


def _recorded(folder: Path) -> Path:
    out, program = folder / "real", Path(__file__).with_name("program.py")
    launch = ["torchrun", "--nproc-per-node", str(N_REAL), str(program), str(N_STEPS_REAL)]
    command = [sys.executable, "-m", "hypocenter", "run", "--out", str(out), *launch]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return out


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.many_ranks")
    parser.add_argument("--rows", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--on", nargs="+", default=["here"], help="here, processes:2, ...")
    parser.add_argument("--processes", type=int, default=2, help="that write")
    parser.add_argument("--healthy", action="store_true", help="plant nothing")
    parser.add_argument("--real", metavar="DIR", help="a recording of program.py, instead of a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
