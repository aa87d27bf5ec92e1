"""`python -m hypocenter.record.ship_apart RUN FOLDER ADDRESS SECONDS [FILE...]`: ships one rank while it is written.

Each so many seconds it ships what is there, and all of it once a line comes on its standard input, or its end: the
program is over, or died. What there is to say of it goes to standard output, a sentence a line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypocenter.record.address import without_secrets
from hypocenter.record.shipping import Freight

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # before it is tried again


def main(words: list[str]) -> int:
    """Ship until the program is over. Return 0, or 1 where something is left."""
    run, folder, address, every_s, *also = words
    give_way()
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.buffer.readline(), over.set()), daemon=True).start()
    freight = Freight(run=Path(run), folder=Path(folder), address=address, also=tuple(also))
    return int(not ship_until(over, freight, float(every_s), _print))


def ship_until(over: threading.Event, freight: Freight, every_s: float, say: Callable[[str], None]) -> bool:
    """Ship each `every_s` seconds until `over`, then the rest; return whether all is there.

    Args:
        say: takes one line: once when shipping fails, once when it goes on, once at the end for what is left.
    """
    wait_s, retry_s = every_s, FIRST_WAIT_S
    is_failing = False
    while not over.wait(wait_s):
        why = _tried(freight, is_over=False)
        if why and not is_failing:
            say(f"shipping to {freight.address} fails, it is tried again and training goes on ({why})")
        elif is_failing and not why:
            say(f"{freight.folder.name} is shipped to {freight.address} again")
        is_failing = bool(why)
        wait_s = retry_s if why else every_s
        retry_s = min(2 * retry_s, LONGEST_WAIT_S) if why else FIRST_WAIT_S
    why = _tried(freight, is_over=True) and _tried(freight, is_over=True)
    if why:
        say(freight.left(why))
    return not why


def _tried(freight: Freight, is_over: bool) -> str:
    """Ship once; return why not, or nothing."""
    try:
        freight.ship(is_over)
    except Exception as error:
        return without_secrets(f"{type(error).__name__}: {error}").replace("\n", " ")[:200]
    return ""


def give_way() -> None:
    """Run only while no other program wants the processor: training has no core to spare, and this has time."""
    with suppress(OSError):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        elif hasattr(os, "nice"):
            os.nice(19)


def _print(line: str) -> None:
    with suppress(OSError):  # the program is gone
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
