"""view: the picture of all ranks, which takes long to draw, holds nothing else up and is not forgotten."""

import time
from pathlib import Path

import pytest
from asking import training

from hypocenter.view import shown
from hypocenter.view.findings import Findings
from hypocenter.view.following import FollowedRun
from hypocenter.view.shown import RanksPicture


def test_it_is_drawn_a_quarter_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path / "run", ranks=2)
    run.go(3)
    followed, picture, now = FollowedRun(run.path), RanksPicture(), [100.0]
    found, draw = Findings(followed), shown.ranks_of

    def drawing(*of: object) -> object:
        now[0] += 2.0
        return draw(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(shown, "ranks_of", drawing)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    followed.look()
    first = picture.drawn(followed, found)
    is_due_at_once = picture.is_due(followed, found)
    run.go(1)
    followed.look()
    soon = picture.is_due(followed, found), picture.drawn(followed, found)
    now[0] += 6.0
    later = picture.is_due(followed, found), picture.drawn(followed, found)
    run.end()

    assert not is_due_at_once
    assert soon == (False, first)
    assert later[0]
    assert later[1] != first
    assert not picture.is_due(followed, found)
