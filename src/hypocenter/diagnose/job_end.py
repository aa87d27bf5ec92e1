"""How a job ended: whereabouts of its attempts, and what is known beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Protocol

from hypocenter.detect.job import Job
from hypocenter.nouns import Place, Run, StepRecord
from hypocenter.record.liveness import liveness
from hypocenter.record.whereabouts import Whereabouts

_RECENT_STEPS = 50  # that say how long a step takes


class RecordedEnd(Protocol):
    """What is needed of an open recording (hypocenter.record.reader)."""

    run: Run
    ranks: list[int]

    @property
    def places(self) -> Mapping[int, Place]:
        """Where each rank stands."""
        ...

    @property
    def whereabouts(self) -> Mapping[int, Whereabouts]:
        """Where each rank was last."""
        ...

    @property
    def earlier_whereabouts(self) -> Mapping[int, Mapping[int, Whereabouts]]:
        """The same of earlier attempts, by attempt."""
        ...

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged."""
        ...


def jobs_of(recorded: RecordedEnd, records: Mapping[tuple[int, int], StepRecord]) -> list[Job]:
    """The job as rules about its end see it: each attempt of an elastic job by itself, the latest last.

    Args:
        recorded: an open recording.
        records: step records by (rank, step).
    """
    attempts: dict[int, dict[int, Whereabouts]] = {}
    for attempt, found in recorded.earlier_whereabouts.items():
        attempts.setdefault(attempt, {}).update(found)
    for rank, seen in recorded.whereabouts.items():
        attempts.setdefault(seen.attempt, {})[rank] = seen
    latest = max(attempts, default=0)
    return [_job(recorded, records, attempts.get(n, {}), n, n == latest) for n in sorted({*attempts, latest})]


def _job(
    recorded: RecordedEnd,
    records: Mapping[tuple[int, int], StepRecord],
    whereabouts: Mapping[int, Whereabouts],
    attempt: int,
    is_latest: bool,
) -> Job:
    newest = max(whereabouts.values(), key=lambda w: w.started_ns, default=None)
    size = newest.world_size if newest is not None else 0
    found = {rank: w for rank, w in whereabouts.items() if rank < size and w.rank == rank}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank, step in records:
        first[rank] = min(step, first.get(rank, step))
        last[rank] = max(step, last.get(rank, step))
    recent = [records[key].step_ms for key in list(records)[-_RECENT_STEPS:]]
    return Job(
        run=recorded.run,
        attempt=attempt,
        is_latest=is_latest,
        now_ns=time.time_ns(),
        ranks=tuple(recorded.ranks),
        whereabouts=found,
        liveness={rank: liveness(w) for rank, w in found.items() if not w.has_ended and not w.has_raised},
        first_steps=first,
        last_steps=last,
        step_s=statistics.median(recent) / 1000.0 if recent else 0.0,
        places=recorded.places,
        problems=tuple(recorded.problems),
    )
