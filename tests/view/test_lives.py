"""view: what became of each rank is told within seconds, also while the others hang; who lives is not accused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from asking import Asking, alive, killed, training

from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Attempt, Place, StepRecord
from hypocenter.record.place_file import write_place
from hypocenter.record.whereabouts import ENDED, RAISED
from hypocenter.session.evidence_file import write_evidence
from hypocenter.view import lives
from hypocenter.view.following import FollowedRun

Serve = Callable[..., Asking]


def test_a_rank_that_is_killed_is_named_while_the_others_hang(tmp_path: Path, serve: Serve) -> None:
    run = training(tmp_path / "run", ranks=4)
    run.go(3)
    for rank in (0, 1, 3):
        alive(run.path, rank, 4)
    asking = serve(tmp_path, diagnoses=False).enter()
    before = asking.part(run.path, "finding", "nothing wrong so far")
    killed(run.path, 2, 4, step=2)

    finding = asking.part(run.path, "finding", "HC321")
    ranks = asking.run(run.path, "/part/ranks").text

    assert "HC" not in before
    assert "rank 2" in finding
    assert "gone since" in ranks
    assert ranks.count('class="lost') + ranks.count('class="origin') == 1


def test_who_waits_for_a_rank_that_died_is_not_said_to_have_gone_wrong(tmp_path: Path, serve: Serve) -> None:
    """Each of the others leaves evidence of its lost connection, and it comes first."""
    run = training(tmp_path / "run", ranks=4)
    run.go(3)
    asking = serve(tmp_path, diagnoses=False).enter()
    for rank in (0, 1):
        alive(run.path, rank, 4).end(RAISED, "RuntimeError", "Connection closed by peer")
        facts = {"type": "RuntimeError", "text": "Connection closed by peer"}
        died = Evidence(id="step-000003-crash", trigger="crash", step=3, rank=rank, world_size=4, facts=facts)
        write_evidence(run.path / f"rank-{rank:05d}" / "bundles", died)
    alive(run.path, 3, 4)
    killed(run.path, 2, 4)

    finding = asking.part(run.path, "finding", "HC3")

    assert "rank 2 was killed" in finding
    assert "HC324" not in finding


def test_ranks_that_live_or_came_to_their_end_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "EVERY_S", 0.0)
    run = training(tmp_path / "run", ranks=4)
    run.go(3)
    alive(run.path, 0, 4)
    alive(run.path, 1, 4)
    alive(run.path, 2, 4, phase="outside").end(ENDED)
    alive(run.path, 3, 4, phase="outside").end(ENDED)
    followed = FollowedRun(run.path)
    for _ in range(3):
        followed.look()

    assert followed.lives.findings == []
    assert [state.says for state in followed.states() if state.is_lost] == []
    assert followed.is_running


def test_ranks_that_an_elastic_job_goes_on_without_are_away_and_a_host_that_was_replaced_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    """Eight ranks became six: none of the other two is silent, lost or behind."""
    monkeypatch.setattr(lives, "EVERY_S", 0.0)
    run = training(tmp_path / "run", ranks=8)
    run.go(3)
    for rank in range(8):
        killed(run.path, rank, 8)
        write_place(run.path, Place(rank=rank, world_size=8, host="a"), Attempt(host="a", pid=rank))
    for rank in range(6):
        alive(run.path, rank, 6, attempt=1)
        host = "b" if rank == 5 else "a"
        write_place(run.path, Place(rank=rank, world_size=6, host=host), Attempt(host=host, pid=rank + 8, number=1))
        for step in range(3, 9):
            run.writers[rank].write([], StepRecord(step=step, loss=1.0))
    followed = FollowedRun(run.path)
    for _ in range(3):
        followed.look()
    ranks = serve(tmp_path, diagnoses=False).enter().part(run.path, "ranks", "rank 5 moved from a to b")

    assert followed.lives.findings == []
    assert {state.rank for state in followed.states() if state.is_away} == {6, 7}
    assert not any(state.is_lost for state in followed.states())
    assert ranks.count('class="away') == 2
    assert "last steps from" not in ranks


def test_a_rank_that_came_back_later_is_no_more_of_the_earlier_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six became eight again: all are there, and one that has not started yet is waited for, not accused."""
    monkeypatch.setattr(lives, "EVERY_S", 0.0)
    run = training(tmp_path / "run", ranks=8)
    run.go(3)
    for rank in range(8):
        killed(run.path, rank, 8)
    for rank in range(7):
        alive(run.path, rank, 8, attempt=1, phase="starting")
    followed = FollowedRun(run.path)
    for _ in range(3):
        followed.look()

    assert [state.rank for state in followed.states() if state.is_away or state.is_lost] == []
    assert followed.lives.findings == []
