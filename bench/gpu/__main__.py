"""Run the checks: `python -m bench.gpu [--check NAME] [--device KIND] [--write FILE] [--dry-run]`.

Each runs by itself, so that one that hangs or breaks its device leaves the others alone. Without a GPU what would be
done is said, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType

from bench.gpu.rows import Row

CHECKS = tuple(sorted(path.stem for path in Path(__file__).with_name("checks").glob("[!_]*.py")))
NEEDED = ("numpy", "pyarrow", "msgspec", "click", "rich", "jinja2", "yaml", "duckdb")


def main() -> int:
    """Print the table as Markdown; the exit code is 1 where something was not as expected."""
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=main.__doc__)
    parser.add_argument("--check", action="append", choices=CHECKS, help="only this one (may be repeated)")
    parser.add_argument("--device", help="kind of device; the default is cuda where there is one")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    options = parser.parse_args()
    kind = options.device or _kind()
    wanted = options.check or CHECKS
    if options.dry_run or kind is None:
        print(_plan(wanted, "there is no GPU here" if kind is None else f"on {kind}"))
        return 0
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"these packages are missing for {sys.executable}: {' '.join(missing)}", file=sys.stderr)
        return 2
    lines = [*_heading(kind), "| check | what | seen | expected | |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    is_bad = False
    for name in wanted:
        for row in _rows(name, kind):
            is_bad |= row.is_ok is False
            verdict = {True: "ok", False: "**bad**", None: ""}[row.is_ok]
            lines.append(f"| {name} | {row.what} | {_cell(row.seen)} | {_cell(row.expected)} | {verdict} |")
            print(lines[-1], flush=True)
    if options.write:
        options.write.write_text("\n".join(lines) + "\n")
    return int(is_bad)


def _rows(name: str, kind: str) -> list[Row]:
    check = _check(name)
    if kind not in check.NEEDS:
        return [Row(what=_first_line(check), seen=f"not run: it needs {' or '.join(check.NEEDS)}")]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hypocenter-gpu-") as folder:
        try:
            rows = check.run(kind, Path(folder))
        except Exception as error:
            traceback.print_exc()
            rows = [Row(what=_first_line(check), seen=repr(error), expected="a result", is_ok=False)]
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows


def _kind() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None


def _heading(kind: str) -> list[str]:
    import torch

    device = torch.cuda.get_device_name() if kind == "cuda" else kind
    n = torch.cuda.device_count() if kind == "cuda" else 1
    return [f"Checked on {n} x {device}, torch {torch.__version__}, Python {platform.python_version()}.", ""]


def _plan(wanted: tuple[str, ...] | list[str], where: str) -> str:
    checks = [f"- `{name}`: {_first_line(_check(name))} (needs {' or '.join(_check(name).NEEDS)})" for name in wanted]
    return "\n".join([f"Nothing is run: {where}. These checks would be:", "", *checks])


def _check(name: str) -> ModuleType:
    return importlib.import_module(f"bench.gpu.checks.{name}")


def _first_line(check: ModuleType) -> str:
    return (check.__doc__ or "").splitlines()[0]


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
