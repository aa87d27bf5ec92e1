"""Ranks in words: lists of them, and their groups by the name of the axis."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from hypocenter.axes import WORDS
from hypocenter.nouns import Phase, Place, Source
from hypocenter.record.whereabouts import Whereabouts, WherePhase

_SHOWN = 8  # ranks, or runs of ranks, that a sentence lists
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


def ranks_text(ranks: Collection[int]) -> str:
    """Name ranks as in `rank 2`, `ranks 0, 1, 3` or `ranks 0 to 511`; those beyond a few are counted."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs]
    more = f" and {sum(b - a + 1 for a, b in runs[_SHOWN:]):,} more" if len(texts) > _SHOWN else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(texts[:_SHOWN])}{more}"


def group_text(group: tuple[int, ...], places: Mapping[int, Place], world_size: int) -> str:
    """Name a group as in `all ranks` or `dp`, or by its ranks."""
    if len(group) == world_size:
        return "all ranks"
    place = places.get(group[0]) if group else None
    axes = (
        [axis for axis, ranks in place.groups.items() if tuple(sorted(ranks)) == tuple(sorted(group))] if place else []
    )
    return axes[0] if axes else ranks_text(group)


def seconds_text(seconds: float) -> str:
    """Say a time as in `40 ms`, `3.2 s`, `12 min`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def axis_words(axis: str) -> str:
    """Return the name of an axis in words: `dp` is data-parallel."""
    return WORDS.get(axis, axis)


def who(ranks: Sequence[int], odd: Sequence[int]) -> str:
    """Say which rank is the odd one, or that nobody can tell."""
    if odd:
        return f"{ranks_text(odd)} {'differs' if len(odd) == 1 else 'differ'} from the others of {ranks_text(ranks)}"
    if len(ranks) == 2:
        return f"{ranks_text(ranks)} differ; with two ranks nothing here tells which of them is wrong"
    return f"{ranks_text(ranks)} differ, and no value is that of most of them"


def when_words(since: int | None, step: int) -> str:
    """Say `at step 10`, or `between steps 10 and 20` when nobody looked in between."""
    if since is None or since >= step - 1:
        return f"at step {step}"
    return f"between steps {since} and {step}"


def values_words(values: Mapping[int, float], digits: int = 4, at_most: int = 4) -> str:
    """Say values as in `0.5 on rank 0, 1 on rank 1`."""
    shown = [f"{value:.{digits}g} on rank {rank}" for rank, value in list(values.items())[:at_most]]
    more = f" (and {len(values) - at_most} more ranks)" if len(values) > at_most else ""
    return ", ".join(shown) + more


def own_frames(stack: str) -> list[str]:
    """Return the lines of a stack that are not of a library, innermost first."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    return [line for line in lines if not _LIBRARY.search(line)]


def line_of(seen: Whereabouts) -> str:
    """Return file:line of the program's own code that it was in; "" where that is not known."""
    if seen.line or not seen.stack:
        return seen.line
    found = next((match for frame in own_frames(seen.stack) if (match := _FRAME.match(frame))), None)
    return f"{found[1]}:{found[2]}" if found is not None else ""


def source_of(seen: Whereabouts) -> Source | None:
    """Return the line of the program's own code that it was in; None where that is not known."""
    file, _, line = line_of(seen).rpartition(":")
    return Source(file=file, line=int(line)) if file and line.isdigit() else None
