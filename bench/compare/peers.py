"""Hypocenter and msprobe on the same programs: `python -m bench.compare peers --msprobe-python PYTHON [--write]`.

Records a GPT good and with each of three planted bugs with both tools, compares, and prints a page of what it cost and
what each tool said, side by side; `--write` puts it to docs/comparing-peers.md. Without a Python that has msprobe its
columns say so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.compare.depths import FILE as DEPTHS
from bench.compare.depths import in_words as depths_in_words
from bench.compare.msprobe import SECONDS, MsprobeFailed, compare

QUIET = 0.5  # load average of a machine on which nothing else runs
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "comparing-peers.md"
PLANTED = {
    "eps": ("LayerNorm eps 1e-3 for 1e-5 in block 2", "`blocks.2.ln2`, forward, step 0"),
    "bf16": ("the MLP of block 2 in bfloat16", "`blocks.2.mlp`, its weights or its forward, step 0"),
    "decay": ("no weight decay on biases", "biases, by the update of step 0"),
}
TOOLS = {
    "hypocenter-sketch": "**hypocenter** `modules --sketch`",
    "hypocenter-tensors": "**hypocenter** `tensors`",
    "msprobe-L0": "msprobe `tensor` L0",
    "msprobe-mix": "msprobe `tensor` mix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a tool cost on the good program and on comparing it with the bugs."""

    step_seconds: float
    step_bytes: float
    compare_seconds: float  # mean over the planted bugs


def main(argv: list[str]) -> int:
    """Measure and print the page."""
    wanted = _arguments(argv)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="peers-", dir=wanted.folder) as name:
        page = "\n".join(_page(Path(name), wanted)) + "\n"
    print(page)
    print(f"took {(time.perf_counter() - began) / 60:.1f} minutes", file=sys.stderr)
    if wanted.write:
        PAGE.write_text(page, encoding="utf-8")
    return 0


def _page(folder: Path, wanted: argparse.Namespace) -> Iterator[str]:
    load = os.getloadavg()[0]
    bugs = wanted.bug or list(PLANTED)
    times = [_record(sys.executable, planted, "nothing", folder / "plain", wanted) for planted in bugs]
    plain = sum(times) / len(times) / wanted.steps
    costs: dict[str, Cost | str] = {}
    answers: dict[str, dict[str, str]] = {}
    tools = {tool: title for tool, title in TOOLS.items() if not wanted.tool or tool in wanted.tool}
    for tool in tools:
        if tool.startswith("msprobe") and not wanted.msprobe_python:
            costs[tool] = "not installed (--msprobe-python)"
            continue
        try:
            costs[tool], answers[tool] = _tool(folder, tool, wanted)
        except (MsprobeFailed, subprocess.SubprocessError, OSError) as error:
            costs[tool] = f"failed: {error}"
        print(tool, costs[tool], file=sys.stderr, flush=True)
    yield "# Two runs that should match: beside msprobe"
    yield ""
    yield "Written by `python -m bench.compare peers --msprobe-python PYTHON --write`; do not edit."
    yield ""
    yield (
        f"A GPT in plain PyTorch, 4 layers, width {wanted.width}, batch 8 × 128, AdamW, one thread, float32; "
        f"{wanted.steps} steps, every one recorded. Times are ratios: of a step to the same step without a tool, of a "
        "comparison to the first in the table. msprobe (mindstudio-probe 26.2) is compared per step by its `compare`, "
        "Hypocenter over all steps at once by `diff`; the good run is recorded with `--calibrate`, which measures the "
        "noise floor and is not in the times."
    )
    if load > QUIET:
        yield ""
        yield f"The machine was loaded when this was measured ({load:.1f} on {os.cpu_count()} cores)."
    yield ""
    yield "| | time of a step | bytes of a step | time of comparing two runs |"
    yield "|---|---|---|---|"
    first = next((cost.compare_seconds for cost in costs.values() if isinstance(cost, Cost)), 1.0)
    for tool, title in tools.items():
        cost = costs[tool]
        if isinstance(cost, str):
            yield f"| {title} | {cost} | | |"
        else:
            yield (
                f"| {title} | ×{cost.step_seconds / plain:.1f} | {_size(cost.step_bytes)} | "
                f"×{cost.compare_seconds / first:.1f} |"
            )
    yield ""
    yield "## What they say of three planted bugs"
    for planted, (what, truth) in ((bug, PLANTED[bug]) for bug in bugs):
        yield ""
        yield f"**{what}.** Right: {truth}."
        yield ""
        for tool, title in tools.items():
            if tool in answers:
                yield f"- {title}: {answers[tool][planted]}"
    if DEPTHS.exists():
        yield ""
        yield "## Sketches against values"
        yield ""
        yield from depths_in_words(json.loads(DEPTHS.read_text(encoding="utf-8")))


def _tool(folder: Path, tool: str, wanted: argparse.Namespace) -> tuple[Cost, dict[str, str]]:
    python = wanted.msprobe_python if tool.startswith("msprobe") else sys.executable
    good = folder / tool / "good"
    _record(python, "none", tool, good, wanted, calibrate=True)
    answers: dict[str, str] = {}
    seconds = compare_seconds = n_bytes = 0.0
    bugs = wanted.bug or list(PLANTED)
    for planted in bugs:
        out = folder / tool / planted
        seconds += _record(python, planted, tool, out, wanted)
        n_bytes += sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        answers[planted], took = _msprobe(python, good, out) if tool.startswith("msprobe") else _hypocenter(good, out)
        compare_seconds += took
        shutil.rmtree(out)
    shutil.rmtree(good)
    n = len(bugs)
    steps = n * wanted.steps
    return Cost(step_seconds=seconds / steps, step_bytes=n_bytes / steps, compare_seconds=compare_seconds / n), answers


def _record(
    python: str, planted: str, tool: str, out: Path, wanted: argparse.Namespace, *, calibrate: bool = False
) -> float:
    """Seconds of the steps."""
    out.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    environment |= {"PEER_CALIBRATE": "1"} if calibrate else {}
    words = [
        python,
        "-W",
        "ignore",
        "-m",
        "bench.compare.peer_gpt",
        planted,
        tool,
        str(out),
        str(wanted.width),
        str(wanted.steps),
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, cwd=out.parent, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise OSError((done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1])
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def _hypocenter(good: Path, other: Path) -> tuple[str, float]:
    began = time.perf_counter()
    words = [sys.executable, "-m", "hypocenter", "diff", str(good), str(other), "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False)
    took = time.perf_counter() - began
    if done.returncode not in (0, 1, 5):
        raise OSError(done.stderr.strip().splitlines()[-1])
    answer = json.loads(done.stdout)
    cause = f"; cause: {answer['cause']} ({answer['confidence']})" if answer["cause"] else ""
    text = f": {answer['fit']['text']}" if answer["fit"] else ""
    return f"*{answer['sentence']}{cause}{text}*", took


def _msprobe(python: str, good: Path, other: Path) -> tuple[str, float]:
    tables, took = compare(python, good, other)
    said: list[str] = []
    for table in tables:
        counts = ", ".join(f"{n:,} {word}" for word, n in sorted(table.results.items()))
        first = f", first `{table.first}`: {table.message or 'no message'}" if table.first else ""
        said.append(f"step {table.step}: {counts}{first}")
    return "; ".join(said), took


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:,.0f} KiB"


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare peers", description=__doc__)
    parser.add_argument("--msprobe-python", help="a Python that has torch and mindstudio-probe")
    parser.add_argument("--width", type=int, default=256, help="of the GPT (default 256)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bug", action="append", choices=list(PLANTED), help="only this one (may be repeated)")
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="only this one (may be repeated)")
    parser.add_argument("--folder", help="where recordings go meanwhile (msprobe: about 1 GB a step)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
