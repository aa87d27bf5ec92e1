"""Run the study: `python -m bench.data [--seed S] [--only WORD] [--loader WORD]`."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator

from bench.data.faults import FAULTS
from bench.data.loaders import LOADERS
from bench.data.study import Outcome, one, resumed, same_workers

RESUMED = ("anew", "back", "skips", "right")


def main() -> int:
    """Print a line for each program, then a table; the exit code is 1 where healthy data were accused."""
    parser = argparse.ArgumentParser(prog="bench data", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only faults whose name holds this")
    parser.add_argument("--loader", default="", help="only loaders whose name holds this")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for each in _all(options.seed, options.only, options.loader):
        outcomes.append(each)
        told = f"{each.found.severity} {each.found.code} {each.found.title}" if each.found is not None else "-"
        where = (
            f"{each.fault or 'healthy':34} {each.loader:30} {'first' if each.is_first_pass else 'later'} {each.step:3}"
        )
        print(where, told, flush=True)
        for false in each.false:
            print("    FALSE", false.severity, false.code, false.step, false.title, *false.why, sep=" | ", flush=True)
    print_table(outcomes)
    return int(any(each.false and each.step < 0 for each in outcomes))


def _all(seed: int, only: str, loader: str) -> Iterator[Outcome]:
    loaders = [name for name in LOADERS if loader in name]
    for number, name in enumerate(loaders):
        if only in "healthy":
            yield one("", name, seed + number, is_first_pass=False)
        for at, fault in enumerate(FAULTS):
            for is_first_pass in (True, False):
                if only in fault:
                    yield one(fault, name, seed + 100 * at + number, is_first_pass=is_first_pass)
    for name in ["DataLoader, in order", *loaders]:
        for what in RESUMED:
            for is_first_pass in (True, False):
                if only in f"resumed: {what}":
                    yield resumed(what, name, seed, is_first_pass=is_first_pass)
    if only in "each worker reads all":
        yield same_workers(seed)


def print_table(outcomes: list[Outcome]) -> None:
    """A row for each fault: found at its step, in the first pass over the data, and in a later one."""
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        by_fault[each.fault or "healthy"].append(each)
    print("\n| fault | first pass | later pass | warnings | said at other steps |\n| --- | --- | --- | --- | --- |")
    for fault, group in by_fault.items():
        cells = [_share([each for each in group if each.is_first_pass is is_first]) for is_first in (True, False)]
        n_warned = sum(each.found is not None and each.found.severity == "warning" for each in group)
        print(f"| {fault} | {' | '.join(cells)} | {n_warned} | {sum(len(each.false) for each in group)} |")
    planted = [each for each in outcomes if each.step >= 0]
    cells = [_share([each for each in planted if each.is_first_pass is is_first]) for is_first in (True, False)]
    print(f"| all | {' | '.join(cells)} | | {sum(len(each.false) for each in outcomes)} |")


def _share(group: list[Outcome]) -> str:
    planted = [each for each in group if each.step >= 0]
    return f"{sum(each.found is not None for each in planted)} of {len(planted)}" if planted else ""


if __name__ == "__main__":
    sys.exit(main())
