"""`python -m bench.blind [NAME ...] [--trial third] [--audit every=1] [--twins] [--device KIND] [--jobs N]`.

What is said of programs that people wrote who had not read the rules: those of `first/` to `eighth/`. Those of
`healthy/` are right, and were written after what the rules ask, to be accused by them.

Each is recorded by `hypocenter run` in a process of its own (those of several ranks under torchrun) and diagnosed. The
exit code is 1 when one is not told what the `.toml` beside its folder says, or a healthy twin is warned of.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
LIMIT_S = 600.0
AGAIN = "checkpoint written"  # says the first of two processes, which is not watched
FOR_SEVERAL = "# RANKS"  # begins the first line of a program for two ranks
FOR_MINDSPORE = "# MINDSPORE"  # and of one for the interpreter that the variable MINDSPORE_PYTHON names


@dataclass(frozen=True, slots=True)
class Told:
    """Of one program: (code, step) of each warning and error; `failed`: why there is no diagnosis."""

    name: str
    alarms: tuple[tuple[str, int], ...]
    failed: str = ""


def main() -> int:
    """Run the programs, print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.blind", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names; without any, all")
    parser.add_argument(
        "--trial",
        choices=["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "healthy"],
        default="first",
    )
    parser.add_argument("--audit", default="", help="as of `hypocenter run`")
    parser.add_argument("--twins", action="store_true", help="the healthy ones")
    parser.add_argument("--device", default="cpu", help="where they train; what does not run there shows its own error")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    expected = tomllib.loads((HERE / f"{asked.trial}.toml").read_text(encoding="utf-8"))
    names = [name for name in expected if name.startswith(tuple(asked.names or [""]))]
    with tempfile.TemporaryDirectory(prefix="hypocenter-blind-") as folder, ThreadPoolExecutor(asked.jobs) as jobs:
        all_told = jobs.map(lambda name: _told(name, Path(folder) / name, asked), names)
        n_wrong = n_found = 0
        for told in all_told:
            is_right = _show(told, expected[told.name], is_twin=asked.twins)
            n_wrong += not is_right
            n_found += bool(told.alarms)
    print(f"{len(names)} programs, {n_found} with a warning or an error, {n_wrong} otherwise than expected")
    return int(n_wrong > 0)


def _told(name: str, folder: Path, asked: argparse.Namespace) -> Told:
    program, out = HERE / asked.trial / f"{name}.py", folder / "run"
    folder.mkdir()
    text = program.read_text(encoding="utf-8")
    python = os.environ.get("MINDSPORE_PYTHON", "python") if text.startswith(FOR_MINDSPORE) else "python"
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "2"] if text.startswith(FOR_SEVERAL) else [python]
    options = ["--out", str(out), *(["--audit", asked.audit] if asked.audit else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BLIND_FOLDER": str(folder), "BLIND_DEVICE": asked.device}
    environment["FAULT"] = "0" if asked.twins else "1"
    command = [sys.executable, "-m", "hypocenter", "run", *options, *launcher, str(program)]
    try:
        if AGAIN in text:
            subprocess.run(["python", str(program)], env=environment, cwd=folder, capture_output=True, timeout=LIMIT_S)
        ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Told(name, (), "it did not end")
    if "FINAL" not in ended.stdout and "METRIC" not in ended.stdout:
        return Told(name, (), ended.stderr.strip().rpartition("\n")[2][:200])
    found = diagnose(open_run(out)).findings
    return Told(name, tuple((f.code, f.step) for f in found if f.severity in ("warning", "error")))


def _show(told: Told, expected: dict[str, Any], *, is_twin: bool) -> bool:
    """Print a row; return whether it is as expected."""
    codes = () if is_twin else tuple(expected.get("codes", ()))
    first = [code for code, _ in told.alarms]
    is_right = not told.failed and (
        bool(set(codes) & set(first))
        if codes
        else not (first and (is_twin or "healthy" in expected) and "twin" not in expected)
    )
    said = ", ".join(f"{code} at step {step}" for code, step in told.alarms) or told.failed or "nothing"
    begins = "" if is_twin else f" (begins at {expected['begins']})"
    why = expected.get("twin" if is_twin else "missed", "")
    missed = f" [{why}]" if why else ""
    print(f"{'right' if is_right else 'WRONG'}  {told.name}{begins}: {said}{missed}", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(main())
