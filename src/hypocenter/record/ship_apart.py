"""`python -m hypocenter.record.ship_apart RUN FOLDER ADDRESS [--over] [FILE...]`: one rank, in a process of its own."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from hypocenter.record.address import without_secrets
from hypocenter.record.shipping import Freight, is_being_written


def main(words: list[str]) -> int:
    """Ship the files; the last line on stderr says why not. Return 0, or 1 on failure."""
    run, folder, address, *rest = words
    is_over = "--over" in rest
    also = tuple(word for word in rest if word != "--over")
    if not is_over:
        give_way()
    freight = Freight(run=Path(run), folder=Path(folder), address=address, also=also)
    try:
        freight.ship((lambda _: False) if is_over else is_being_written)
    except Exception as error:
        sys.stderr.write(without_secrets(f"{type(error).__name__}: {error}").replace("\n", " ") + "\n")
        return 1
    return 0


def give_way() -> None:
    """Run only while no other program wants the processor: training has no core to spare, and this has time."""
    with suppress(OSError):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        elif hasattr(os, "nice"):
            os.nice(19)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
