"""A rank that was started again is the same rank of the same run: of a step recorded twice the later attempt counts.

Attempts are told apart by the number that the launcher gave them (rank.json). Two processes of one rank with the same
number are no attempts: nothing of theirs is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.in_words import some
from hypocenter.nouns import Place
from hypocenter.record.gather import Mask, Want

_SHOWN = 8  # ranks that a sentence lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Steps that an attempt of one rank completed, in the run's count."""

    number: int
    first: int
    last: int


def file_name_of(host: str) -> str:
    """Return a machine's name as a part of a file name, as the writer makes it."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in host)[:64] or "host"


def numbers_of(place: Place | None) -> dict[str, int]:
    """Return writer (`<host>-<pid>`) -> number of its attempt; {} for a rank that was started once."""
    attempts = place.attempts if place is not None else ()
    if len({attempt.number for attempt in attempts}) < 2:
        return {}
    return {f"{file_name_of(attempt.host)}-{attempt.pid}": attempt.number for attempt in attempts}


def cuts(numbers: Mapping[str, int], spans: Mapping[str, Span]) -> dict[str, int]:
    """Return writer -> the step from which its rows do not count, as a later attempt has begun there.

    Args:
        numbers: attempt of each writer.
        spans: of the writers that completed a step.
    """
    found: dict[str, int] = {}
    for writer, number in numbers.items():
        later = [span.first for span in spans.values() if span.number > number]
        if later:
            found[writer] = min(later)
    return found


def before(want: Want, step: int) -> Want:
    """Return a Want of the same rows and columns, of earlier steps only."""
    mask = want.where

    def where(batch: pa.RecordBatch) -> pa.Array:
        early = is_before(step)(batch)
        return early if mask is None else pc.and_(early, mask(batch))  # pyright: ignore[reportAttributeAccessIssue]

    return replace(want, where=where, needs=(*want.needs, "step"))


def is_before(step: int) -> Mask:
    """Return a mask of the rows of earlier steps."""
    return lambda batch: pc.less(batch["step"], step)  # pyright: ignore[reportAttributeAccessIssue]


def sentences(spans: Mapping[int, tuple[Span, ...]]) -> list[str]:
    """Say where each attempt of a run that was started again began, and how far the one before was.

    Args:
        spans: by rank, in rising order of attempts; a rank that was started once has one.
    """
    numbers = sorted({span.number for known in spans.values() for span in known})
    said: list[str] = []
    for earlier, number in pairwise(numbers):
        began = [span.first for known in spans.values() for span in known if span.number == number]
        ended = {rank: span.last for rank, known in spans.items() for span in known if span.number == earlier}
        if began:
            at = f"step {min(began)}" if len(set(began)) == 1 else f"steps {min(began)} to {max(began)}"
            said.append(f"attempt {number} began at {at} ({_ended(ended)})")
    return said


def _ended(last: Mapping[int, int]) -> str:
    """Say how far ranks were: `rank 2 had ended at step 6, ranks 0, 1 and 3 at step 7`."""
    by_step: dict[int, list[int]] = {}
    for rank, step in sorted(last.items()):
        by_step.setdefault(step, []).append(rank)
    parts = [f"{_ranks(ranks)}{' had ended' if i == 0 else ''} at step {step}"
             for i, (step, ranks) in enumerate(sorted(by_step.items()))]  # fmt: skip
    return ", ".join(parts) if parts else "the one before completed no step"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {some(ranks, _SHOWN)}"
