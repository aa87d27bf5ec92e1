"""Run the study: `python -m bench.relations [--n N] [--seed S] [--healthy] [--formats F] [--only NAME] [--cost]`."""

from __future__ import annotations

import argparse
import sys
import warnings

from bench.relations.families import FAMILIES
from bench.relations.healthy import FORMATS, sweep


def main() -> int:
    """Leaks that are drawn, each put into a model; or, with --healthy, the models as they are; or what it costs."""
    parser = argparse.ArgumentParser(prog="bench relations", description=main.__doc__)
    parser.add_argument("--n", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.healthy:
        return int(sweep(options.only or FAMILIES, options.formats) > 0)
    from bench.relations import cost, drill

    if options.cost:
        return cost.run()
    return drill.run(options.n, options.seed, options.only)


if __name__ == "__main__":
    sys.exit(main())
