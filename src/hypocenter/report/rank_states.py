"""What each rank of a job came to: where it stands, when its values first went bad, and whether it is still there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from hypocenter.axes import AXES
from hypocenter.detect.step_columns import StepColumns
from hypocenter.nouns import Coords, Diagnosis, Place, Run, StepRecord
from hypocenter.record.reader import RecordedRun

MOST_RANKS = 1 << 17  # ranks of one job; a world size beyond it is damage, and nothing to draw
RANK_LOST = "rank-lost"  # the cause of a finding about a rank that died or never came


class RecordedRanks(Protocol):
    """What this needs of an open recording (hypocenter.record.reader)."""

    run: Run
    ranks: list[int]

    @property
    def places(self) -> Mapping[int, Place]:
        """Where each rank stands."""
        ...

    def step_records(self) -> list[tuple[int, StepRecord]]:
        """Every (rank, step record)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank of the job, recorded or not."""

    rank: int
    coords: Coords  # all None where nobody told the layout
    host: str
    device: str
    first_bad_step: int | None  # loss or gradients not finite, or an error, other than its loss, blamed on this rank
    last_step: int | None  # completed
    is_recorded: bool  # it left a folder
    is_lost: bool  # it left none, or the diagnosis says that it died or is missing


def rank_states(recorded: RecordedRanks, diagnosis: Diagnosis) -> tuple[RankState, ...]:
    """Every rank of the job in rising order, with those that left no recording.

    A missing rank's coordinates come from the groups in which the others name it.
    """
    world = recorded.run.world_size if recorded.run.world_size <= MOST_RANKS else 0
    left = set(recorded.ranks)
    ranks = sorted({*range(world), *left})
    errors = [f for f in diagnosis.findings if f.severity == "error" and f.cause != RANK_LOST]
    blamed = {finding.step for finding in errors}
    bad, last = _by_columns(recorded, blamed) if isinstance(recorded, RecordedRun) else _bad_and_last(
        recorded.step_records(), blamed
    )  # fmt: skip
    for finding in errors:
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


def _bad_and_last(records: Iterable[tuple[int, StepRecord]], blamed: Set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """First bad and last step by rank. A skip of the loss scaler is bad only if it is among the steps with an error."""
    bad: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank, record in records:
        last[rank] = max(record.step, last.get(rank, record.step))
        if _is_bad(record) and (record.step in blamed or not _is_left_to_scaler(record)):
            bad[rank] = min(record.step, bad.get(rank, record.step))
    return bad, last


def _by_columns(recorded: RecordedRun, blamed: Set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """The same; records are made only of steps that were not finite."""
    bad: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank in recorded.ranks:
        columns = StepColumns(recorded.record_table(rank))
        if len(columns):
            last[rank] = int(columns.steps[-1])
        few = [(rank, record) for at in columns.is_bad.nonzero()[0].tolist() for record in columns.between(at, at + 1)]
        bad |= _bad_and_last(few, blamed)[0]
    return bad, last


def _is_bad(record: StepRecord) -> bool:
    return record.n_bad_grads > 0 or any(
        value is not None and not math.isfinite(value) for value in (record.loss, record.grad_norm)
    )


def _is_left_to_scaler(record: StepRecord) -> bool:
    """Its scale was too high for the gradients, which is in order: it skips the step and takes a lower one."""
    return record.skipped and record.loss_scale is not None and (record.loss is None or math.isfinite(record.loss))


def _told_by_others(places: Iterable[Place]) -> dict[int, Coords]:
    """A rank's coordinate on an axis is its position in that axis' group, which every member of the group names."""
    found: dict[int, dict[str, int]] = {}
    for groups in {tuple(sorted(place.groups.items())) for place in places}:
        for axis, ranks in groups:
            if axis in AXES:
                for position, rank in enumerate(ranks):
                    found.setdefault(rank, {})[axis] = position
    return {rank: Coords(**axes) for rank, axes in found.items()}
