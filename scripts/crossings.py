"""Count how often a command goes from one source file to another: what a reader who follows it has to open.

    python scripts/crossings.py diff BASELINE CANDIDATE
    python scripts/crossings.py check RUN

A crossing is a call in another file than the call before it. It is backward when that file was entered earlier than the
one that it leaves. Code that runs while modules are imported is not counted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from types import FrameType

import hypocenter
from hypocenter import cli

_SOURCE = hypocenter.__path__[0] + "/"


class Crossings:
    """A profiling function that counts.

    Attributes:
        n: crossings.
        n_backward: of them into a file that was entered earlier.
        entered: the files in the order in which they were entered, each with its place in it.
    """

    def __init__(self) -> None:
        self.n = self.n_backward = 0
        self.entered: dict[str, int] = {}
        self._at = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take one event of `sys.setprofile`."""
        file = frame.f_code.co_filename
        if event != "call" or file == self._at or not file.startswith(_SOURCE) or frame.f_code.co_name == "<module>":
            return
        place = self.entered.setdefault(file, len(self.entered))
        if self._at:
            self.n += 1
            self.n_backward += place < self.entered[self._at]
        self._at = file


def main(command: Sequence[str]) -> None:
    """Run a command of Hypocenter; the counts go to stderr."""
    crossings = Crossings()
    sys.setprofile(crossings)
    try:
        with contextlib.suppress(SystemExit):
            cli.main(list(command))
    finally:
        sys.setprofile(None)
    print(f"{crossings.n} crossings, {crossings.n_backward} backward, {len(crossings.entered)} files", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
