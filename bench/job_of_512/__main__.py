"""Run the benchmark: `python -m bench.job_of_512 [--ranks N] [--layers N] [--steps N] [--keep DIR]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.job_of_512.answers import complaints
from bench.job_of_512.job import Job, mesh
from bench.job_of_512.measure import measured, total
from bench.job_of_512.simulate import write_job
from hypocenter.detect import group_engine

MOST_SECONDS = 120.0  # check and report together, on two cores
MOST_MIB = 4096.0
MOST_PAGE_BYTES = 2 << 20


def main() -> int:
    """Write, check, report; print what it cost; exit with 1 when an answer is wrong or a limit exceeded."""
    wanted = _arguments()
    tp, pp = (wanted.tp, wanted.pp) if wanted.tp else mesh(wanted.ranks)
    job = Job(ranks=wanted.ranks, layers=wanted.layers, steps=wanted.steps, tp=tp, pp=pp)
    with tempfile.TemporaryDirectory(prefix="hypocenter-job-") as folder:
        run = Path(wanted.keep or folder) / "run"
        if not run.exists():
            started = time.perf_counter()
            write_job(run, job, wanted.processes)
            print(f"written in {time.perf_counter() - started:.0f} s: {_size_mib(run):,.0f} MiB", file=sys.stderr)
        return _read(job, run)


def _read(job: Job, run: Path) -> int:
    page = run.parent / "report.html"
    page.unlink(missing_ok=True)
    costs = [measured("check", str(run)), measured("report", str(run), "-o", str(page))]
    diagnosis = json.loads((run / "diagnosis.json").read_text())
    print(costs[0].stdout)
    print(f"{job.ranks:,} ranks (dp {job.dp} x pp {job.pp} x tp {job.tp}), {diagnosis['n_rows']:,} rows")
    for cost in costs:
        print(f"{cost.words:8} {cost.seconds:7.1f} s  {cost.cpu_s:7.1f} s of processor  {cost.peak_mib:7.0f} MiB")
    seconds, peak_mib = total(costs)
    wrong = list(complaints(job, diagnosis, list(group_engine.group_rules())))
    if seconds > MOST_SECONDS or peak_mib > MOST_MIB:
        wrong.append(f"{seconds:.0f} s and {peak_mib:.0f} MiB are over {MOST_SECONDS:.0f} s or {MOST_MIB:.0f} MiB")
    if page.stat().st_size > MOST_PAGE_BYTES:
        wrong.append(f"the page has {page.stat().st_size:,} bytes")
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.job_of_512")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tp", type=int, default=0, help="tensor-parallel size; by default fitting to the ranks")
    parser.add_argument("--pp", type=int, default=1, help="pipeline stages, with --tp")
    parser.add_argument("--processes", type=int, default=2, help="that write")
    parser.add_argument("--keep", metavar="DIR", help="keep the recording there, or read the one that is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
