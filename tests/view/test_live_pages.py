"""view: a run that goes on is followed, in whole steps and bounded memory; answers are made once, however many ask."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from asking import Asking, training, until

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.run_file import finish_run
from hypocenter.view import child, findings, server, shown
from hypocenter.view.alerts import Told
from hypocenter.view.course import LATEST, MOST_BAD, Course
from hypocenter.view.findings import Findings
from hypocenter.view.following import FollowedRun
from hypocenter.view.overview import overview_shown
from hypocenter.view.runs import name_of
from hypocenter.view.watcher import MOST_KEPT

Serve = Callable[..., Asking]


def test_steps_appear_as_they_are_written_and_a_step_that_breaks_is_said(tmp_path: Path, serve: Serve) -> None:
    run = training(tmp_path / "run")
    asking = serve(tmp_path / "run", diagnoses=False).enter()
    empty = asking.part(run.path, "finding", "nothing was recorded yet")
    run.go(5)
    some = asking.part(run.path, "steps", '<td class="mono">4</td>')
    before = asking.run(run.path, "/state").json
    run.go(1, loss=math.nan)
    asking.part(run.path, "finding", "not finite from step 5 on")
    state = asking.run(run.path, "/state").json

    assert "<h2>" in empty
    assert some.count("<tr><td") == 5
    assert before["turn"] == ""
    assert (state["turn"], state["title"]) == ("bad-5", "✗ step 5 · run")


def test_sites_are_listed_worst_first_once_a_child_has_read_them(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "in_child", lambda *words: child.answer(words))  # a process takes seconds to start
    run = training(tmp_path / "run")
    rows = [
        Reading(step=0, microbatch=0, site=site, port="out[0]", phase="forward", dtype="float16", order=i,
                summary=Summary(n=8, n_hist=8, n_posinf=bad, absmax=size, absmin=0.5, min=-size, max=size))
        for i, (site, size, bad) in enumerate((("calm", 1.0, 0), ("near", 60000.0, 0), ("broken", 2.0, 3)))
    ]  # fmt: skip
    run.writers[0].write(rows, StepRecord(step=0, loss=1.0))
    run.end()

    table = serve(tmp_path).enter().part(run.path, "sites", "broken")

    names = ["broken", "near", "calm"]
    assert sorted(names, key=table.index) == names
    assert table.count('<tr class="bad">') == 1
    assert "+inf ×3" in table


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path, serve: Serve) -> None:
    run = training(tmp_path / "run")
    run.go(5)
    asking = serve(tmp_path, diagnoses=False).enter()
    asking.part(run.path, "steps", "<td")
    path = f"/run/{name_of(run.path.resolve())}"
    first = asking.get(f"{path}/state")

    again = asking.get(f"{path}/state", If_None_Match=first.headers["etag"])
    zipped = asking.get(f"{path}/part/curves", Accept_Encoding="gzip")

    assert (again.code, again.body) == (304, b"")
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.headers["etag"].strip('"') == first.json["parts"]["curves"]


def test_many_who_ask_cost_one_rendering(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path / "run")
    run.go(5)
    asking = serve(tmp_path, diagnoses=False).enter()
    asking.part(run.path, "steps", "<td")
    made: list[int] = []
    monkeypatch.setattr(shown, "_texts", lambda *args: made.append(1) or [])

    for _ in range(50):
        assert asking.run(run.path, "/state").code == 200

    assert made == []


def test_memory_is_bounded_however_long_it_trains() -> None:
    course, dice = Course(100), random.Random(1)
    for step in range(20_000):
        for rank in (1, 0):
            loss = math.nan if dice.random() < 0.3 else 1.0
            course.add(rank, StepRecord(step=step, loss=loss, grad_norm=float(rank)))
        assert len(course) <= 201 + MOST_BAD + LATEST

    records = course.records()
    assert [record.step for record in records[-LATEST:]] == list(range(20_000 - LATEST, 20_000))
    assert records[0].step == 0
    assert all(record.grad_norm == 1.0 for record in records)


def test_few_runs_are_kept_whoever_asks_for_all(tmp_path: Path, serve: Serve) -> None:
    runs = [training(tmp_path / f"run-{n}") for n in range(MOST_KEPT + 5)]
    for run in runs:
        run.go(2)
    asking = serve(tmp_path, diagnoses=False).enter()
    for run in runs:
        asking.part(run.path, "steps", "<td")

    until(lambda: str(asking.server.watcher.n_kept <= MOST_KEPT), "True")
    until(lambda: asking.get("/part/list").text, f"run-{MOST_KEPT + 4}")


def test_only_new_bytes_are_read_at_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path / "run", ranks=3)
    run.go(300)
    followed = FollowedRun(run.path)
    followed.look()
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: read.append(len(data := pread(*args))) or data)
    run.go(1)

    assert followed.look()
    assert sum(read) < 3 * 1000
    assert followed.course.last_step == 300
    assert not followed.look()


def test_ranks_are_told_together_and_apart(tmp_path: Path, serve: Serve) -> None:
    run = training(tmp_path / "run", ranks=6)
    run.go(4)
    run.writers[2].write([], StepRecord(step=4, loss=1.0))
    asking = serve(tmp_path, diagnoses=False).enter()

    ranks = asking.part(run.path, "ranks", "last steps from 3 (rank 0) to 4")

    assert "6 ranks" in ranks
    assert ranks.count('role="tooltip"') == 6


@pytest.mark.night
def test_a_run_that_is_over_is_diagnosed_once_in_another_process(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    in_child = findings.in_child
    monkeypatch.setattr(findings, "in_child", lambda *words: asked.append(words[0]) or in_child(*words))
    run = training(tmp_path / "run")
    run.go(20)
    run.end()
    asking = serve(tmp_path).enter()

    asking.part(run.path, "finding", "healthy")

    assert asking.run(run.path, "/state").json["is_over"]
    assert asked == ["diagnose"]
    assert sorted(path.name for path in run.path.iterdir()) == ["rank-00000", "run.json"]


def test_what_was_diagnosed_while_it_ran_is_diagnosed_again_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training(tmp_path / "run")
    run.go(5)
    followed = FollowedRun(run.path)
    found = Findings(followed)
    monkeypatch.setattr(findings, "_LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(findings, "_PAUSE_FACTOR", 0.0)
    monkeypatch.setattr(findings, "in_child", lambda *words: child.answer(words))

    def status() -> str:
        followed.look()
        found.look()
        return f"{found.is_whole} {found.diagnosis.status if found.diagnosis else ''}"

    until(status, "True cannot-tell")
    run.end()
    until(status, "True healthy")


def test_a_run_with_links_in_it_is_shown_and_not_handed_to_a_child(tmp_path: Path, serve: Serve) -> None:
    run = training(tmp_path / "runs" / "one")
    run.go(3)
    run.end()
    (run.path / "rank-00000" / "tensors").symlink_to(tmp_path)
    asking = serve(tmp_path / "runs").enter()

    asking.part(run.path, "finding", "it holds links")

    assert asking.run(run.path, "/report").code == 503


def test_who_wants_to_be_told_is_told_of_runs_that_go_on(tmp_path: Path, serve: Serve) -> None:
    over, bad, going = (training(tmp_path / name) for name in ("over", "bad", "going"))
    for run in (over, bad, going):
        run.go(2)
    over.end()
    bad.go(1, loss=math.nan)
    told: list[str] = []
    asking = serve(tmp_path, alert=lambda alert: told.append(f"{alert.run} {alert.kind}"))
    kept = asking.server.watcher._watched
    until(lambda: " ".join(sorted(path.name for path, one in dict(kept).items() if one.told)), "bad going")
    finish_run(going.path, "failed", 1)

    until(lambda: " ".join(told), "going ended")
    assert told == ["going ended"]


def test_the_report_and_two_runs_beside_each_other(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "in_child", lambda *words: child.answer(words))  # a process takes seconds to start
    one, two = training(tmp_path / "one"), training(tmp_path / "two")
    for run in (one, two):
        run.go(40)
        run.end()
    asking = serve(tmp_path, diagnoses=False).enter()
    a, b = (name_of(run.path.resolve()) for run in (one, two))
    chosen = asking.get(f"/compare?a={a}&b={b}")

    both = until(lambda: asking.get(f"/compare/{a}/{b}/part/both").text, "<svg")
    report = asking.run(one.path, "/report")

    assert chosen.headers["location"] == f"compare/{a}/{b}"
    assert both.count('class="curves broad"') == 2  # the learning rate never changes
    assert "candidate two" in both
    assert report.text.startswith("<!doctype html>")
    assert "Hypocenter report" in report.text


def test_a_recording_that_is_too_large_is_told_how_to_be_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training(tmp_path / "run")
    run.go(2)
    monkeypatch.setattr(findings, "MOST_RECORDED_BYTES", 1)
    followed = FollowedRun(run.path)
    followed.look()
    found = Findings(followed)
    found.look()

    assert "more than is read here" in found.why_not
    assert "hypocenter check" in shown.shown(followed, found, shown.RanksPicture()).parts["finding"].data.decode()


def test_alerts_tell_each_thing_once(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    run.go(2)
    followed = FollowedRun(run.path)
    found = Findings(followed)
    told = Told(followed, found)
    followed.look()
    before = told.news()
    run.go(1, loss=math.inf)
    followed.look()
    assert followed.bad_since_s is not None
    at_once = told.news()
    followed.bad_since_s -= 60
    broke = told.news()
    finish_run(run.path, "failed", 1)
    followed.look()

    assert (before, at_once) == ([], [])
    assert [alert.title for alert in broke] == ["loss or gradients are not finite from step 2 on"]
    assert [(alert.kind, alert.title) for alert in told.news()] == [("ended", "failed after step 2, exit code 1")]
    assert told.news() == []


def test_a_list_whose_runs_are_not_looked_at_yet_says_so() -> None:
    assert b"looking at 3 runs" in overview_shown([], 0, n_coming=3).parts["list"].data
    assert b"no run yet" in overview_shown([], 0).parts["list"].data
