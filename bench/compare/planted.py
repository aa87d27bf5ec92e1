"""Planted differences and noise of tests/compare/planted, all of them: `python -m bench.compare planted [--out DIR]`.

Writes docs/comparing-cases.md: of each case the wanted and the found place and cause, and the sentence.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "comparing-cases.md"
SITES, CAUSES = 38 / 40, 34 / 40  # of the cases: what must be right at least

HEAD = """\
# Planted differences

Written by `python -m bench.compare planted`; do not edit.

Qwen2, GPT-2 and T5 of six blocks (T5: six and six), 64 wide, trained for three steps in float32 or with parameters in
bfloat16; one difference is planted, both runs are recorded at level modules with sketches (no tensors), the
baseline with `--calibrate`. What must be found stands in tests/compare/planted/cases.py beside what is done. A place
is right when the first difference is in the wanted phase and module; a cause when the fit taken is the wanted one.
"""
NOISE_HEAD = """\
## Noise

Pairs that differ by the order of sums only. None may be called a difference.

- `order-1`, `order-2`: matrix products that take their inputs in a random order of their own, two seeds
- `rows-in-two`, `sums-in-two`: matrix products in two parts; `sums-of-norms`: means of norms in another order
- `sdpa-math`, `eager`: another kernel of attention, and attention in plain operations
- `loss-by-token`, `fused-updates`: the loss by hand, fused updates of AdamW
- `threads-2`, `threads-3`: that many threads against one, gradients clipped by the norm of one flat buffer
- `ddp`: two ranks (gloo, DistributedDataParallel) against one process, same global batch
- `...-by-repeats`: the floor from three repeats (`--noise`: other orders, other kernels), without `--calibrate`
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case, and what was found."""

    case: Any
    found: Any
    is_site_right: bool = False
    is_cause_right: bool = False


def main(argv: Sequence[str]) -> int:
    """Record, compare, write the page; 1 when fewer are right than wanted, or noise is called a difference."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare planted")
    parser.add_argument("--out", type=Path, help="keep the recordings here, and use those that are there")
    parser.add_argument("--only", default="*", help="shell pattern of cases; the page is not written")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT / "tests" / "compare" / "planted"))
    with tempfile.TemporaryDirectory() as temporary:
        planted, noise = _measured(args.out or Path(temporary), args.only)
    if args.only == "*":
        PAGE.write_text(page(planted, noise), encoding="utf-8")
    print("\n".join(_summary(planted, noise)))
    is_enough = _share(planted, "is_site_right") >= SITES and _share(planted, "is_cause_right") >= CAUSES
    return 0 if is_enough and not any(row.found.status == "diverged" for row in noise) else 1


def _measured(folder: Path, only: str) -> tuple[list[Row], list[Row]]:
    import cases
    import recorded

    recordings = recorded.Recordings(folder)
    planted = [case for case in cases.CASES if fnmatch.fnmatchcase(case.id, only)]
    noise = [case for case in cases.NOISE if fnmatch.fnmatchcase(case.id, only)]
    recordings.make([*planted, *noise])
    rows: list[Row] = []
    for case in planted:
        found = recordings.compared(case)
        rows.append(
            Row(
                case=case, found=found, is_site_right=recorded.is_site_right(case, found),
                is_cause_right=recorded.is_cause_right(case, found),
            )
        )  # fmt: skip
        if not (rows[-1].is_site_right and rows[-1].is_cause_right):
            print(f"{case.id}: place {_place(found)}, cause {_cause(found)}: {found.sentence}", flush=True)
    quiet = [Row(case=case, found=recordings.compared(case)) for case in noise]
    for row in quiet:
        if row.found.status != "same":
            print(f"{row.case.id}: {row.found.sentence}", flush=True)
    return rows, quiet


def page(planted: Sequence[Row], noise: Sequence[Row]) -> str:
    """The whole page."""
    summary = [f"- {line}" for line in _summary(planted, noise)]
    tables = [*_table(planted), "", NOISE_HEAD, *_noise_table(noise)]
    return "\n".join([HEAD, *summary, "", *tables]) + "\n"


def _summary(planted: Sequence[Row], noise: Sequence[Row]) -> Iterator[str]:
    n_sites, n_causes = sum(row.is_site_right for row in planted), sum(row.is_cause_right for row in planted)
    verdicts = [row.found.status for row in noise]
    yield f"{n_sites} of {len(planted)} places and {n_causes} of {len(planted)} causes are right"
    n_equal = sum(row.found.sentence.endswith("equal to the bit") for row in noise)
    yield (
        f"of {len(noise)} pairs that differ by noise only {verdicts.count('same')} are called the same, "
        f"{verdicts.count('cannot-tell')} cannot be told, {verdicts.count('diverged')} are called a difference; "
        f"{n_equal} of them are equal to the bit here"
    )


def _share(rows: Sequence[Row], name: str) -> float:
    return sum(getattr(row, name) for row in rows) / len(rows) if rows else 1.0


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| planted | case | wanted place | found place | | wanted cause | found cause | | `diff` says |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        case, found = row.case, row.found
        wanted = f"{case.phase.replace('|', ' or ')} `{case.site.replace('|', '` or `') or 'the model itself'}`"
        cells = [
            case.kind, case.id, wanted, _place(found), _mark(row.is_site_right), case.fit, _cause(found),
            _mark(row.is_cause_right), found.sentence,
        ]  # fmt: skip
        yield f"| {' | '.join(cell.replace('|', '') for cell in cells)} |"


def _noise_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| pair | verdict | floor from | `diff` says |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        yield f"| {row.case.id} | {row.found.status} | {row.found.floor_source} | {row.found.sentence} |"


def _place(found: Any) -> str:
    first = found.first
    return f"{first.phase} `{first.site or 'the model itself'}`" if first is not None else f"none ({found.status})"


def _cause(found: Any) -> str:
    return f"{found.fit.name} ({found.confidence})" if found.fit is not None else "none"


def _mark(is_right: bool) -> str:
    return "right" if is_right else "**wrong**"
