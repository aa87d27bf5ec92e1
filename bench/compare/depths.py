"""Verdicts from sketches against verdicts from the values: `python -m bench.compare depths [--only GLOB] [--write]`.

Records pairs of tests/compare/planted at level `tensors` with sketches, compares each at both depths, and says how
often they agree, what a step takes on disk at either, and how long the comparisons take. `--write` keeps the answer in
bench/compare/depths.json, for the page of `bench.compare peers`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("depths.json")
PLANTED = ROOT / "tests" / "compare" / "planted"
_SECONDS = 1800.0  # for one recording process, on a machine under load
_CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import hypocenter
watch = hypocenter.watch
hypocenter.watch = lambda *args, **options: watch(*args, **{**options, "level": sys.argv[3]})
from record import record
for job in json.loads(open(sys.argv[2], encoding="utf-8").read()):
    record(job)
"""


def main(argv: list[str]) -> int:
    """Measure and print; 1 when verdicts agree in fewer than 95 of 100 pairs."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare depths", description=__doc__)
    parser.add_argument("--only", default="*", help="shell pattern of cases")
    parser.add_argument("--most", type=int, default=1000, help="at most so many pairs")
    parser.add_argument("--folder", help="where recordings go meanwhile")
    parser.add_argument("--write", action="store_true", help=f"keep the answer in {FILE.relative_to(ROOT)}")
    wanted = parser.parse_args(argv)
    sys.path.insert(0, str(PLANTED))
    with tempfile.TemporaryDirectory(prefix="depths-", dir=wanted.folder) as name:
        found = _measured(Path(name), wanted.only, wanted.most)
    print("\n".join(in_words(found)))
    if wanted.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(found["n_same_status"] < 0.95 * found["n_pairs"])


def in_words(found: dict[str, Any]) -> Iterator[str]:
    """The answer as lines of Markdown."""
    n_pairs, n_same, n_rows, n_agree = (found[key] for key in ("n_pairs", "n_same_status", "n_rows", "n_rows_agree"))
    yield (
        f"Of {n_pairs} pairs ([comparing-cases.md](comparing-cases.md): Qwen2, GPT-2 and T5 in float32 and bfloat16; "
        f"{found['n_diverged']} diverged, the others differ by noise only) the verdict from sketches is that from "
        f"values in {n_same} ({_percent(n_same, n_pairs)}), the first place in {found['n_same_place']}, the verdict on "
        f"a single row in {n_agree:,} of {n_rows:,} ({_percent(n_agree, n_rows)})."
    )
    yield ""
    yield "| | bytes of a step | time of a diff |"
    yield "|---|---|---|"
    for title, key in (("sketches (level `modules --sketch`)", "sketch"), ("values (level `tensors`)", "value")):
        ratio = found[f"{key}_seconds"] / max(found["sketch_seconds"], 1e-9)
        yield f"| {title} | {found[f'{key}_bytes'] / 2**20:.2f} MiB | ×{ratio:.1f} |"
    for title, lines in (("Another verdict", found["disagree"]), ("Another place", found["other_place"])):
        if lines:
            yield ""
            yield f"{title}:"
            yield ""
            yield from (f"- {line}" for line in lines)


def _measured(folder: Path, only: str, most: int) -> dict[str, Any]:
    import cases
    import recorded

    everything = [*cases.CASES, *(one for one in cases.NOISE if one.n_ranks == 1 and not one.repeats)]
    chosen = [case for case in everything if fnmatch.fnmatchcase(case.id, only)]
    chosen = chosen[:: max(1, len(chosen) // most)][:most]
    total: dict[str, Any] = dict.fromkeys(("n_pairs", "n_same_status", "n_same_place", "n_rows", "n_rows_agree"), 0)
    total |= {"n_diverged": 0, "sketch_seconds": 0.0, "value_seconds": 0.0, "disagree": [], "other_place": []}
    sizes: dict[str, list[float]] = {"tensors": [], "modules": []}
    for base in dict.fromkeys(case.base for case in chosen):
        of_base = [case for case in chosen if case.base == base]
        made = {level: recorded.Recordings(folder / level) for level in sizes}
        _record([made["modules"].job(base)], folder, "modules")
        _record([made["tensors"].job(base), *(made["tensors"].job(base, case) for case in of_base)], folder, "tensors")
        for level, recordings in made.items():
            sizes[level].append(_step_bytes(Path(recordings.job(base)["out"]), values_only=level == "tensors"))
        for case in of_base:
            _count(total, made["tensors"], case)
        for level in sizes:
            shutil.rmtree(folder / level)
    n = max(total["n_pairs"], 1)
    mean = {level: sum(each) / max(len(each), 1) for level, each in sizes.items()}
    return total | {
        "sketch_seconds": total["sketch_seconds"] / n, "value_seconds": total["value_seconds"] / n,
        "sketch_bytes": mean["modules"], "value_bytes": mean["tensors"],
    }  # fmt: skip


def _count(total: dict[str, Any], recordings: Any, case: Any) -> None:
    """Compare one pair at both depths, and add what was found."""
    from bench.compare.agreement import agreement
    from hypocenter.record.reader import open_run

    found = agreement(open_run(recordings.baseline(case)), open_run(recordings.candidate(case)))
    total["n_pairs"] += 1
    for key in ("n_rows", "n_rows_agree", "sketch_seconds", "value_seconds"):
        total[key] += getattr(found, key)
    total["n_same_status"] += found.same_status
    total["n_diverged"] += found.by_values.status == "diverged"
    total["n_same_place"] += found.same_place
    both = f"{found.by_sketches.sentence} (sketches); {found.by_values.sentence} (values)"
    if not found.same_status:
        total["disagree"].append(f"{case.id}: {both}")
    elif not found.same_place:
        total["other_place"].append(f"{case.id}: {both}")
    print(case.id, *found.statuses, found.same_place, file=sys.stderr, flush=True)


def _record(jobs: list[dict[str, Any]], folder: Path, level: str) -> None:
    """All in one process, one after another: imports take longer than a training."""
    if level == "modules":  # its size is asked for, without what calibration adds
        jobs = [job | {"calibrate": "never"} for job in jobs]
    file = folder / f"{level}.json"
    file.write_text(json.dumps(jobs), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-W", "ignore", "-c", _CHILD, str(PLANTED), str(file), level]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def _step_bytes(run: Path, *, values_only: bool) -> float:
    """Of a step; of level tensors the values, as operators' rows are in its stream too."""
    pattern = "rank-*/tensors/**/*" if values_only else "**/*"
    files = [path for path in run.glob(pattern) if path.is_file()]
    return sum(path.stat().st_size for path in files) / _N_STEPS


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


_N_STEPS = 3  # of tests/compare/planted/training.py


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
