"""What each rank of a job came to: where it stands, when its values first went bad, and whether it is still there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from functools import partial

from hypocenter.axes import AXES
from hypocenter.detect.step_columns import StepColumns
from hypocenter.nouns import Coords, Diagnosis, Place, StepRecord
from hypocenter.record.reader import RecordedRun
from hypocenter.report.rank_state import RankState

MOST_RANKS = 1 << 17  # ranks of one job; a world size beyond it is damage, and nothing to draw
_BadAndLast = tuple[dict[int, int], dict[int, int]]
RANK_LOST = "rank-lost"  # the cause of a finding about a rank that died or never came


def rank_states(recorded: RecordedRun, diagnosis: Diagnosis) -> tuple[RankState, ...]:
    """Return every rank of the job in rising order, with those that left no recording.

    A missing rank's coordinates come from the groups in which the others name it.
    """
    ranks, left = ranks_of_job(recorded), set(recorded.ranks)
    errors = [f for f in diagnosis.findings if f.severity == "error" and f.cause != RANK_LOST]
    blamed = {finding.step for finding in errors}
    bad: dict[int, int] = {}
    last: dict[int, int] = {}
    for bad_there, last_there in recorded.over_parts(partial(_bad_and_last, blamed=blamed)):
        bad |= bad_there
        last |= last_there
    for finding in (f for f in errors if not f.ranks):
        bad[finding.rank] = min(finding.step, bad.get(finding.rank, finding.step))
    lost = {f.rank for f in diagnosis.findings if f.cause == RANK_LOST} | (set(ranks) - left)
    places = recorded.places
    told = _told_by_others(places.values()) if set(ranks) - set(places) else {}
    return tuple(
        RankState(
            rank=rank,
            coords=places[rank].coords if rank in places else told.get(rank, Coords()),
            host=places[rank].host if rank in places else "",
            device=places[rank].device if rank in places else "",
            first_bad_step=bad.get(rank),
            last_step=last.get(rank),
            is_recorded=rank in left,
            is_lost=rank in lost,
        )
        for rank in ranks
    )


def ranks_of_job(recorded: RecordedRun) -> list[int]:
    """Return the ranks of the job in rising order, with those that left no recording."""
    world = recorded.run.world_size if recorded.run.world_size <= MOST_RANKS else 0
    return sorted({*range(world), *recorded.ranks})


def _bad_and_last(recorded: RecordedRun, ranks: Sequence[int], *, blamed: Set[int]) -> _BadAndLast:
    """Return first bad and last step by rank; a skip by the loss scaler is only bad at a step with an error."""
    bad: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank in ranks:
        columns = StepColumns(recorded.record_table(rank))
        if len(columns):
            last[rank] = int(columns.steps[-1])
        not_finite = (record for at in columns.is_bad.nonzero()[0].tolist() for record in columns.between(at, at + 1))
        for record in not_finite:
            if record.step in blamed or not _is_left_to_scaler(record):
                bad[rank] = record.step
                break
    return bad, last


def _is_left_to_scaler(record: StepRecord) -> bool:
    """Return whether the scaler skipped the step as its scale was too high, which is in order."""
    return record.skipped and record.loss_scale is not None and (record.loss is None or math.isfinite(record.loss))


def _told_by_others(places: Iterable[Place]) -> dict[int, Coords]:
    """Return a rank's coordinates: its positions in the groups that the members of each axis name."""
    found: dict[int, dict[str, int]] = {}
    for groups in {tuple(sorted(place.groups.items())) for place in places}:
        for axis, ranks in groups:
            if axis in AXES:
                for position, rank in enumerate(ranks):
                    found.setdefault(rank, {})[axis] = position
    return {rank: Coords(**axes) for rank, axes in found.items()}
