"""Where every rank is, or was last: one line a rank, for a job that hangs or has lost somebody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import PurePath

from hypocenter.detect.rank_words import group_text, seconds_text
from hypocenter.record.liveness import liveness
from hypocenter.record.reader import RecordedRun
from hypocenter.record.whereabouts import Whereabouts
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.wording import clean

_SHOWN = 64  # ranks
_HEADINGS = ("rank", "process", "step", "in", "for", "collective", "at", "said")


def whereabouts_table(recorded: RecordedRun, *, now_ns: int | None = None) -> Iterator[str]:
    """Yield the lines of the table, ranks that have come least far first; nothing when all have ended.

    Args:
        recorded: an open recording.
        now_ns: Unix time to count ages to; now when not given.
    """
    found = recorded.whereabouts
    if all(w.has_ended for w in found.values()):
        return
    now = time.time_ns() if now_ns is None else now_ns
    ordered = sorted(found.values(), key=lambda w: (w.step, w.microbatch, w.changed_ns, w.rank))
    rows = [_row(w, recorded, now) for w in ordered[:_SHOWN]]
    yield from aligned([_HEADINGS, *rows], right=frozenset({0, 2}))
    yield from cut_rows(len(rows), len(ordered), "rank", "those that have come farthest")


def _row(w: Whereabouts, recorded: RecordedRun, now_ns: int) -> tuple[str, ...]:
    state = "raised" if w.has_raised else "ended" if w.has_ended else liveness(w)
    until_ns = now_ns if state in ("running", "stopped") else w.last_ns
    call, collective = w.call, "-"
    if call is not None:
        of = group_text(call.ranks, recorded.places, max(w.world_size, recorded.run.world_size)) if call.ranks else ""
        collective = f"{call.state} {call.op} #{call.seq}{f' of {of}' if of else ''}"
    said = f"{w.exit.type}: {w.exit.text}" if w.exit is not None and w.exit.type else ""
    place = " ".join(filter(None, (w.site, PurePath(w.line).name)))
    return (
        str(w.rank), state, str(w.step), w.phase, seconds_text(max(0, until_ns - w.changed_ns) / 1e9),
        clean(collective), clean(place) or "-", clean(said, 100),
    )  # fmt: skip
