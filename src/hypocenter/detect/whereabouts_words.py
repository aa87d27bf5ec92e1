"""Where a rank was, in words and as the place of a finding."""

from __future__ import annotations

import re

from hypocenter.nouns import Phase, Source
from hypocenter.record.whereabouts import Whereabouts, WherePhase

PHASES: dict[WherePhase, Phase] = {
    "forward": "forward", "loss": "loss", "backward": "backward", "check": "grad", "agree": "comm",
    "update": "optimizer",
}  # fmt: skip
IN_WORDS: dict[WherePhase, str] = {
    "starting": "starting, before its first step", "outside": "its own code, outside of model, backward and update",
    "forward": "the forward", "loss": "its loss code", "backward": "the backward", "check": "Hypocenter's check",
    "agree": "Hypocenter's agreement", "update": "the update", "replay": "a replay by Hypocenter", "off": "its program",
}  # fmt: skip
_FRAME = re.compile(r'File "(.+)", line (\d+)')
_LIBRARY = re.compile(r"(site|dist)-packages|/hypocenter/|<frozen|/lib/python3")


def own_frames(stack: str) -> list[str]:
    """Lines of a stack that are not of a library, innermost first."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    return [line for line in lines if not _LIBRARY.search(line)]


def line_of(seen: Whereabouts) -> str:
    """file:line of the program's own code that it was in; "" where that is not known."""
    if seen.line or not seen.stack:
        return seen.line
    found = next((match for frame in own_frames(seen.stack) if (match := _FRAME.match(frame))), None)
    return f"{found[1]}:{found[2]}" if found is not None else ""


def source_of(seen: Whereabouts) -> Source | None:
    """The line of the program's own code that it was in, where that is known."""
    file, _, line = line_of(seen).rpartition(":")
    return Source(file=file, line=int(line)) if file and line.isdigit() else None
