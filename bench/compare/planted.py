"""Planted differences and noise of tests/compare/planted, all of them: `python -m bench.compare planted [--out DIR]`.

Writes docs/comparing-cases.md: of each case the wanted and the found place and cause, and the sentence.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "comparing-cases.md"


def main(argv: Sequence[str]) -> int:
    """Record, compare, write the page; 1 when fewer are right than wanted, or noise is called a difference."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare planted")
    parser.add_argument("--out", type=Path, help="keep the recordings here, and use those that are there")
    parser.add_argument("--only", default="*", help="shell pattern of cases")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT / "tests" / "compare" / "planted"))
    with tempfile.TemporaryDirectory() as temporary:
        return _measure(args.out or Path(temporary), args.only, args.page if args.only == "*" else None)


def _measure(folder: Path, only: str, page: Path | None) -> int:
    import cases
    import recorded

    planted = [case for case in cases.CASES if fnmatch.fnmatchcase(case.id, only)]
    noise = [case for case in cases.NOISE if fnmatch.fnmatchcase(case.id, only)]
    recordings = recorded.Recordings(folder)
    recordings.make([*planted, *noise])
    rows = []
    for case in planted:
        began = time.monotonic()
        found = recordings.compared(case)
        sites, causes = recorded.is_site_right(case, found), recorded.is_cause_right(case, found)
        rows.append((case, found, sites, causes))
        first = found.first
        print(
            f"{case.id}: {'ok' if sites else 'SITE'} {'ok' if causes else 'CAUSE'} "
            f"[{first and (first.step, first.phase, first.site, first.port)} {found.fit and found.fit.name}] "
            f"{found.sentence} ({time.monotonic() - began:.1f} s)",
            flush=True,
        )
    quiet = []
    for case in noise:
        found = recordings.compared(case)
        quiet.append((case, found))
        print(f"{case.id}: {found.status}: {found.sentence}", flush=True)
    n_sites, n_causes = sum(row[2] for row in rows), sum(row[3] for row in rows)
    n_false = sum(found.status == "diverged" for _, found in quiet)
    print(
        f"{n_sites} of {len(rows)} places, {n_causes} of {len(rows)} causes, {n_false} of {len(quiet)} noise diverged"
    )
    return 0
