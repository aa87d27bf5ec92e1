"""`hypocenter diff` on a pair of recordings of ten million rows each: seconds and peak memory of the whole command."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.compare.long_runs import write_run

MOST_SECONDS, MOST_GIB = 60.0, 2.0  # on two cores
CORES = 2


def main(argv: list[str]) -> int:
    """Write the pair, compare it in a process of its own, print what it cost; 1 when a limit is exceeded."""
    wanted = _arguments(argv)
    with tempfile.TemporaryDirectory(prefix="hypocenter-pair-", dir=wanted.folder) as name:
        folder = Path(wanted.keep or name)
        sizes = {"n_sites": wanted.sites, "n_steps": wanted.steps, "sealed": not wanted.streams}
        pair = folder / "baseline", folder / "candidate"
        if not pair[1].exists():
            write_run(pair[0], **sizes)
            write_run(pair[1], **sizes, drift_from=wanted.steps * 4 // 5)
        found = _measured(pair)
    print(json.dumps(found, indent=2))
    right = found["first"] is not None and found["first"]["step"] == wanted.steps * 4 // 5
    return int(not right or found["seconds"] > MOST_SECONDS or found["peak_gib"] > MOST_GIB)


def _measured(pair: tuple[Path, Path]) -> dict[str, object]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "hypocenter", "diff", str(pair[0]), str(pair[1]), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_on_two_cores, check=False)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 1, 5):
        raise RuntimeError(done.stderr)
    answer = json.loads(done.stdout)
    return {
        "rows": answer["rows"], "seconds": round(seconds, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, 2),
        "cpu_seconds": round(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), 1),
        "bytes": sum(path.stat().st_size for run in pair for path in run.rglob("*") if path.is_file()),
        "sentence": answer["sentence"], "first": answer["first"] and {k: answer["first"][k] for k in ("step", "site")},
    }  # fmt: skip


def _on_two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare ten-million", description=__doc__)
    parser.add_argument("--sites", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--streams", action="store_true", help="leave the Arrow streams unsealed")
    parser.add_argument("--folder", help="where temporary recordings go")
    parser.add_argument("--keep", metavar="DIR", help="write the pair there, or take the one that is there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
