"""`python -m bench.retention.pace --rounds 10`: whether a step takes longer while its recording is shipped.

The same steps with and without a shipper, in turn, to a store that is slow, refuses, cuts and loses answers; the 99th
percentile of a step. `--every S` ships each S seconds; a run of a user does each ten minutes. Nothing else should
run on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.retention import synthetic
from bench.retention.store import FAULTS, served
from hypocenter.record.keeper import Keep
from hypocenter.record.ship_apart import give_way
from hypocenter.record.shipping import Freight, Shipper
from hypocenter.record.writer import Writer

STEP_S = 0.01  # of the program itself, spent on the processor


def main() -> int:
    """Take turns, compare; 1 when the percentile is more than 2 % longer."""
    parser = argparse.ArgumentParser(prog="python -m bench.retention.pace", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--every", type=float, default=1.0, metavar="S")
    asked = parser.parse_args()
    ratios: list[float] = []
    give_way()  # the store runs in this process, and would be another machine
    with served() as store, tempfile.TemporaryDirectory() as folder:
        store.rng = random.Random(0)
        store.faults = {name: store.rng.uniform(0.1, 0.3) for name in FAULTS}
        for number in range(asked.rounds):
            turns = (False, True) if number % 2 else (True, False)
            with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # the store's threads are none of the program's
                found = {
                    is_shipped: apart.submit(
                        percentile, Path(folder) / f"{number}-{is_shipped}", asked.steps, asked.every, is_shipped
                    )
                    for is_shipped in turns
                }
                without, shipped = found[False].result(), found[True].result()
            ratios.append(shipped / without)
            print(f"{number}: p99 of a step {without * 1e3:.2f} ms, shipped {shipped * 1e3:.2f} ms", flush=True)
    print(f"median of {len(ratios)}: {statistics.median(ratios) - 1:+.1%}; the store failed {dict(store.done)}")
    return int(statistics.median(ratios) > 1.02)


def percentile(out: Path, n_steps: int, every_s: float, is_shipped: bool) -> float:
    """Seconds of a step that one in a hundred exceeds."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    out.mkdir()
    freight = Freight(run=out, folder=out / "rank-00000", address=f"s3://runs/{out.name}")
    shipper = Shipper(freight, lambda _: None, every_s) if is_shipped else None
    writer = Writer(out, rank=0, warn=print, keep=Keep(n_bytes=4 << 20, n_steps=512))
    taken: list[float] = []
    for rows, record, norms in synthetic.steps(0, n_steps, synthetic.template(), {}):
        began = time.perf_counter()
        while time.perf_counter() - began < STEP_S:
            pass
        writer.write(rows, record, norms)
        if shipper is not None:
            shipper.look()
        taken.append(time.perf_counter() - began)
    writer.close()
    if shipper is not None:
        shipper.close(60)
    return float(np.percentile(taken, 99))


if __name__ == "__main__":
    raise SystemExit(main())
