"""`python -m bench.retention --steps 2000000 --keep 64MiB`: write, and look at the directory at every segment's end.

Beside the recording that is rolled up the same numbers are kept as running means, so that trends can be compared with
those of a recording that holds everything.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc

from bench.retention import synthetic
from hypocenter.config import size_of
from hypocenter.record.keeper import Keep
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer

FAULTS = {0.05: "nan", 0.31: "spike", 0.32: "misuse", 0.63: "nan", 0.9: "spike"}  # where: share of the run


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.retention", description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--keep", default="64MiB")
    parser.add_argument("--keep-steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = asked.out or Path(tempfile.mkdtemp(prefix="hypocenter-retention-"))
    keep = Keep(n_bytes=size_of(asked.keep), n_steps=asked.keep_steps or None)
    faults = {int(share * asked.steps): fault for share, fault in FAULTS.items()}
    print(f"{asked.steps:,} steps, {keep.n_bytes:,} bytes, last {keep.n_steps} steps whole, to {out}")
    print(f"{'steps':>10}{'bytes':>13}{'a step':>8}{'files':>7}{'RSS MiB':>9}{'CPU s':>8}")
    start_run(out, ("bench",), {}, 1, {}, {})
    written = Written(out, keep)
    written.write(asked.steps, faults)
    finish_run(out, "finished", 0, [])
    print(f"largest of the directory: {written.largest:,} bytes; of the process: {written.rss:,.0f} MiB")
    written.compare(faults)


class Written:
    """A recording while it is written."""

    def __init__(self, out: Path, keep: Keep) -> None:
        self.largest, self.rss = 0, 0.0
        self._out, self._keep = out, keep
        self._writer = Writer(out, rank=0, warn=print, keep=keep)
        self._sums: dict[int, float] = {}  # of the first parameter's norm, by 10,000 steps

    def write(self, n_steps: int, faults: dict[int, str]) -> None:
        """All steps. After each segment the keeper is waited for: steps of a real model take longer than it."""
        of, shown, began = synthetic.template(), 1000, time.process_time()
        for rows, record, norms in synthetic.steps(0, n_steps, of, faults):
            self._writer.write(rows, record, norms)
            if not norms.bad:
                self._sums[record.step // 10_000] = self._sums.get(record.step // 10_000, 0.0) + norms.norms[0]
            done = record.step + 1
            if done % 250 == 0:
                self.largest = max(self.largest, bytes_in(self._out))
            if done % 500 == 0 and self._writer.keeper is not None:
                self._writer.keeper.wait()
                self.largest = max(self.largest, bytes_in(self._out))
            if done in (shown, n_steps):
                self._show(done, time.process_time() - began)
                shown *= 2
        self._writer.close()
        self._show(n_steps, time.process_time() - began)

    def _show(self, done: int, cpu_s: float) -> None:
        n = bytes_in(self._out)
        self.rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        files = sum(len(names) for _, _, names in os.walk(self._out))
        print(f"{done:>10,}{n:>13,}{n / done:>8.1f}{files:>7}{self.rss:>9.0f}{cpu_s:>8.1f}", flush=True)

    def compare(self, faults: dict[int, str]) -> None:
        """Trends of the whole run, and whether faults and what is around them are whole."""
        from hypocenter.diagnose.diagnosis import diagnose
        from hypocenter.record.reader import open_run

        run = open_run(self._out)
        print(*run.rolled_up, sep="\n")
        table = run.windows()
        site = table.filter(pc.field("site") == "layers.0.weight")
        found: dict[int, list[float]] = {}
        for step, total, n in zip(*(site[c].to_pylist() for c in ("step", "total", "n_sized")), strict=True):
            pair = found.setdefault(step // 10_000, [0.0, 0])
            pair[0] += total
            pair[1] += n
        errors = [abs(t / n / (self._sums[k] / 10_000) - 1) for k, (t, n) in found.items() if n >= 9_999]
        print(
            f"trend of a gradient's norm: {len(errors)} windows of 10,000, largest error {max(errors, default=0):.2%}"
        )
        whole = {r.step for r in run.readings(site="layers.0.weight")}
        records = {r.step for _, r in run.step_records()}
        for step, fault in sorted(faults.items()):
            around = set(range(step - 64, step + 17))
            n, m = len(around & whole), len(around & records)
            print(f"{fault} at {step:,}: of 81 steps around it {n} are whole, {m} have records")
        began = time.process_time()
        diagnosis = diagnose(run)
        print(f"check: {diagnosis.status} in {time.process_time() - began:.1f} s of CPU")
        for finding in diagnosis.findings:
            print(f"  {finding.code} step {finding.step} {finding.title}")
        for note in diagnosis.notes:
            print("  note:", note)


def bytes_in(folder: Path) -> int:
    """All files below it, while others come and go."""
    found = 0
    for path in (Path(at) / name for at, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


if __name__ == "__main__":
    main()
