"""rank.json: where a rank runs and stands. One per rank folder, replaced as a whole; each attempt adds itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from hypocenter.nouns import Attempt, Place
from hypocenter.record.layout import rank_directory
from hypocenter.record.whole_file import write_whole

PLACE_FILE = "rank.json"
FORMAT = 1
# 1: first version
_AT_MOST_BYTES = 4 << 20


def write_place(directory: Path, place: Place, attempt: Attempt) -> str:
    """Write rank.json of `place.rank`, with this attempt after those that it holds already.

    Args:
        directory: the run directory.

    Returns:
        Why it could not be written; empty when it could. Never raises.
    """
    folder = rank_directory(directory, place.rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = read_place(folder)
        earlier = known.attempts if known is not None else ()
        others = tuple(a for a in earlier if (a.host, a.pid) != (attempt.host, attempt.pid))
        data = msgspec.json.format(msgspec.json.encode(replace(place, attempts=(*others, attempt))), indent=2)
        write_whole(folder / PLACE_FILE, data + b"\n")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def read_place(folder: Path) -> Place | None:
    """Return the place of a rank folder; None when there is none or it cannot be read."""
    try:
        with (folder / PLACE_FILE).open("rb") as file:
            place = msgspec.json.decode(file.read(_AT_MOST_BYTES), type=Place)
    except (OSError, ValueError, RecursionError):
        return None
    return place if place.format <= FORMAT else None
