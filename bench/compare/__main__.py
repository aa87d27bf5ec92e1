"""Run one measurement: `python -m bench.compare NAME [OPTIONS]`."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import bench.compare as folder


def main() -> int:
    """Hand the rest of the command line to the file of this name."""
    names = sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(folder.__path__))
    names = [name for name in names if not name.startswith("-")]
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"usage: python -m bench.compare {{{','.join(names)}}}", file=sys.stderr)
        return 2
    module = import_module(f"bench.compare.{sys.argv[1].replace('-', '_')}")
    return int(module.main(sys.argv[2:]))


if __name__ == "__main__":
    raise SystemExit(main())
