"""report/rank_states.py: one line per rank of the job, also of those that left nothing."""

from __future__ import annotations

from report_fakes import Job

from hypocenter.nouns import Coords, Diagnosis, Finding, Place, Run, StepRecord
from hypocenter.report.rank_states import rank_states


def recording(records: tuple[tuple[int, StepRecord], ...] = (), world_size: int = 4) -> Job:
    """Four ranks, dp 2 x tp 2, the last of which left nothing."""
    places = {
        rank: Place(
            rank=rank, host=f"node{rank // 2}", device=f"cuda:{rank % 2}", coords=Coords(dp=rank // 2, tp=rank % 2),
            groups={"dp": (rank % 2, rank % 2 + 2), "tp": (rank // 2 * 2, rank // 2 * 2 + 1)},
        )
        for rank in range(3)
    }  # fmt: skip
    run = Run(format=1, name="job", world_size=world_size)
    return Job(run=run, ranks=[0, 1, 2], places=places, records=list(records))


def test_every_rank_has_its_place_its_first_bad_step_and_its_last() -> None:
    records = (
        (0, StepRecord(step=0, loss=1.0)), (0, StepRecord(step=1, loss=float("nan"))), (0, StepRecord(step=2)),
        (1, StepRecord(step=0, n_bad_grads=3)), (2, StepRecord(step=0, grad_norm=2.0)),
    )  # fmt: skip

    states = rank_states(recording(records), Diagnosis())

    assert [s.first_bad_step for s in states] == [1, 0, None, None]
    assert [s.last_step for s in states] == [2, 0, 0, None]
    assert (states[2].host, states[2].device, states[2].coords) == ("node1", "cuda:0", Coords(dp=1, tp=0))


def test_a_rank_that_left_nothing_is_lost_and_stands_where_the_others_say() -> None:
    states = rank_states(recording(), Diagnosis())

    assert [(s.is_recorded, s.is_lost) for s in states] == [(True, False)] * 3 + [(False, True)]
    assert states[3].coords == Coords(dp=1, tp=1)


def test_a_rank_whose_loss_is_diagnosed_is_lost_and_did_not_go_bad_by_that() -> None:
    lost = Finding(code="HC321", kind="comm", severity="error", title="x", step=4, rank=1, cause="rank-lost")

    states = rank_states(recording(), Diagnosis(findings=(lost,)))

    assert [s.is_lost for s in states] == [False, True, False, True]
    assert states[1].first_bad_step is None


def test_another_error_marks_its_rank() -> None:
    drift = Finding(code="HC301", kind="desync", severity="error", title="x", step=4, rank=1)

    states = rank_states(recording(), Diagnosis(findings=(drift,)))

    assert [s.first_bad_step for s in states] == [None, 4, None, None]


def test_a_step_that_the_loss_scaler_skipped_is_bad_only_where_an_error_says_so() -> None:
    records = [
        (rank, StepRecord(step=step, loss=1.0, n_bad_grads=2, loss_scale=1024.0, skipped=True))
        for rank in (0, 1) for step in (3, 9)
    ]  # fmt: skip
    error = Finding(code="HC101", kind="nonfinite", severity="error", title="x", step=9, rank=1)

    recorded = recording(tuple(records))
    told, untold = rank_states(recorded, Diagnosis(findings=(error,))), rank_states(recorded, Diagnosis())

    assert [s.first_bad_step for s in told] == [9, 9, None, None]
    assert [s.first_bad_step for s in untold] == [None] * 4


def test_a_damaged_world_size_makes_no_ranks_up() -> None:
    recorded = recording(world_size=10**15)

    assert [s.rank for s in rank_states(recorded, Diagnosis())] == [0, 1, 2]
