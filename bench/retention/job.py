"""`python -m bench.retention.job --ranks 10000 --steps 1000000`: what a job of many ranks takes on disk.

One rank is written by the real writer, which keeps what a rank of such a job keeps by default; then it is that times
the number of ranks. The model is a small one: a large model writes more a step, and so is rolled up earlier, within the
same budget.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench.retention.__main__ import FAULTS, Written, bytes_in
from hypocenter.config import KEPT_OF_JOB, bytes_kept
from hypocenter.record.keeper import Keep
from hypocenter.record.run_file import finish_run, start_run


def main() -> int:
    """Write one rank, multiply; 1 when the job takes more than it may."""
    parser = argparse.ArgumentParser(prog="python -m bench.retention.job", description=__doc__)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    asked = parser.parse_args()
    budget = bytes_kept(None, asked.ranks)
    with tempfile.TemporaryDirectory(prefix="hypocenter-retention-") as folder:
        start_run(Path(folder), ("bench",), {}, asked.ranks, {}, {})
        written = Written(Path(folder), Keep(n_bytes=budget, n_steps=10_000))
        written.write(asked.steps, {int(share * asked.steps): fault for share, fault in FAULTS.items()})
        finish_run(Path(folder), "finished", 0, [])
        last = bytes_in(Path(folder))
    print(f"one rank: {last:,} bytes at the end, {written.largest:,} at most, of {budget:,} that it may take")
    print(f"a rank and step: {last / asked.steps:.1f} bytes")
    print(f"{asked.ranks:,} ranks x {written.largest:,} = {asked.ranks * written.largest / 1e9:.1f} GB at most")
    print(f"whatever the model: {asked.ranks:,} ranks x {budget:,} = {asked.ranks * budget / 1e9:.1f} GB")
    return int(asked.ranks * max(written.largest, budget) > KEPT_OF_JOB)


if __name__ == "__main__":
    raise SystemExit(main())
