"""Run the count: `python -m bench.syncs [--feature NAME] [--level LEVEL] [--where]`."""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from bench.syncs.count import Count, begin, count_feature
from bench.syncs.features import FEATURES
from bench.syncs.ranks import ON_RANKS, count_on_ranks

LEVELS = ("sentinel", "modules", "ops")


def main() -> int:
    """Print a row for each feature and level; the exit code is 1 where `sentinel` waits more often than it may."""
    parser = argparse.ArgumentParser(prog="bench syncs", description=main.__doc__)
    parser.add_argument("--feature", action="append", choices=[*FEATURES, *ON_RANKS], help="only this one (repeatable)")
    parser.add_argument("--level", action="append", choices=LEVELS, help="only this one (may be repeated)")
    parser.add_argument("--where", action="store_true", help="also the lines that waited")
    options = parser.parse_args()
    print(f"{'feature':22}{'level':10}  a step   mean  most  before update  to device  kernels")
    is_over = False
    with multiprocessing.get_context("spawn").Pool(1, begin) as pool:
        for feature in options.feature or [*FEATURES, *ON_RANKS]:
            for level in options.level or LEVELS:
                alone = lambda *given: pool.apply(count_feature, given)  # noqa: E731
                found = (count_on_ranks if feature in ON_RANKS else alone)(feature, level)
                is_over |= level == "sentinel" and found.usual > found.allowed
                _show(feature, level, found, is_with_places=options.where)
    return int(is_over)


def _show(feature: str, level: str, found: Count, *, is_with_places: bool) -> None:
    print(
        f"{feature:22}{level:10}{found.usual:8}{found.mean:7.2f}{found.most:6}{found.before_update:15}"
        f"{found.from_host:11.2f}{found.kernels:9.0f}", flush=True,
    )  # fmt: skip
    for place, n in found.places.most_common() if is_with_places else ():
        print(f"    {n:5} {' < '.join(place)}")


if __name__ == "__main__":
    sys.exit(main())
