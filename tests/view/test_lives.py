"""view: what became of each rank is told within seconds, also while the others hang; who lives is not accused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from asking import Asking, alive, killed, training

from hypocenter.diagnose.evidence import Evidence
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
