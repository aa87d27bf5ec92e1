"""What processes of a run noted of a change that was made in them: a line each, in changes.jsonl of the run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hypocenter.record.layout import CHANGES_FILE


def noted(run: Path) -> dict[str, list[str]]:
    """What was noted, by change, in the order in which it was; nothing that was noted twice, or cannot be read."""
    try:
        lines = (run / CHANGES_FILE).read_bytes().splitlines()
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        try:
            change, what = msgspec.json.decode(line, type=tuple[str, str])
        except msgspec.DecodeError:
            continue
        if what not in found.setdefault(change, []):
            found[change].append(what)
    return found
