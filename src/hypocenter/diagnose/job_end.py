"""How a job ended: whereabouts of its latest attempt, and what is known beside them."""

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
    def problems(self) -> list[str]:
        """What is missing or damaged."""
        ...


def job_of(recorded: RecordedEnd, records: Mapping[tuple[int, int], StepRecord]) -> Job:
    """The job as rules about its end see it.

    Args:
        recorded: an open recording.
        records: step records by (rank, step).
    """
    found = dict(recorded.whereabouts)
    latest = max((w.attempt for w in found.values()), default=0)
    newest = max((w for w in found.values() if w.attempt == latest), key=lambda w: w.started_ns, default=None)
    size = newest.world_size if newest is not None else 0
    found = {rank: w for rank, w in found.items() if w.attempt == latest and rank < size and w.rank == rank}
    last: dict[int, int] = {}
    for rank, step in records:
        last[rank] = max(step, last.get(rank, step))
    recent = [records[rank, step].step_ms for rank, step in list(records)[-_RECENT_STEPS:]]
    return Job(
        run=recorded.run,
        now_ns=time.time_ns(),
        ranks=tuple(recorded.ranks),
        whereabouts=found,
        liveness={rank: liveness(w) for rank, w in found.items() if not w.has_ended and not w.has_raised},
        last_steps=last,
        step_s=statistics.median(recent) / 1000.0 if recent else 0.0,
        places=recorded.places,
        problems=tuple(recorded.problems),
    )
