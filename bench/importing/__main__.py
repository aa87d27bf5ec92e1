"""python -m bench.importing: time and peak memory of an import of 100,000 tensors of msprobe's JSON.

Exit code 1 when a budget is passed: 10 s, 1 GiB. `python -m bench.importing peers` compares answers, `... fuzz` damages
files: see peers.py and fuzz.py.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from bench.importing.dump import write_dump

SECONDS, MIB = 10.0, 1024.0


def main() -> int:
    if sys.argv[1:2] in (["peers"], ["fuzz"]):
        return int(import_module(f"bench.importing.{sys.argv[1]}").main(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        n = write_dump(root / "dump", args.tensors, n_steps=args.steps)
        size = sum(f.stat().st_size for f in (root / "dump").rglob("*.json"))
        started = time.perf_counter()
        command = [sys.executable, "-m", "hypocenter", "import", str(root / "dump"), "-o", str(root / "run")]
        code = subprocess.run(command, env=dict(os.environ), stdout=subprocess.DEVNULL, check=False).returncode
        seconds = time.perf_counter() - started
        out = sum(f.stat().st_size for f in (root / "run").rglob("*") if f.is_file())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, busy = used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
    print(f"{n:,} tensors in {args.steps} steps, {size / 2**20:.0f} MiB of JSON")
    print(
        f"{seconds:.1f} s (budget {SECONDS:.0f}; {busy:.1f} s of a processor), peak {peak:.0f} MiB (budget {MIB:.0f})"
    )
    print(f"{out / 2**20:.1f} MiB written")
    return int(code != 0 or seconds > SECONDS or peak > MIB)


if __name__ == "__main__":
    sys.exit(main())
