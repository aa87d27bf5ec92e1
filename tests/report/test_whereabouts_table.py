"""The table of where every rank was last."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from hypocenter.nouns import Run
from hypocenter.record.whereabouts import Exit, LastCall, Whereabouts
from hypocenter.report.whereabouts_table import whereabouts_table

NOW_NS = 1_800_000_000_000_000_000


def rank(n, step=7, phase="backward", **more):
    told = {"changed_ns": NOW_NS - 5_000_000_000, "beat_ns": NOW_NS - 1_000_000_000} | more
    return Whereabouts(
        rank=n, world_size=3, host="h", pid=1, boot="another", pid_namespace=1, start_ticks=1, started_ns=0, step=step,
        phase=phase, **told,
    )  # fmt: skip


def lines(*seen):
    recorded = SimpleNamespace(
        run=Run(format=1, name="r", world_size=3), places={}, whereabouts={w.rank: w for w in seen}
    )
    return list(whereabouts_table(recorded, now_ns=NOW_NS))


def test_the_rank_that_is_behind_comes_first_with_where_it_is():
    call = LastCall(op="all_reduce.sum", group="0", members="0-2:1", seq=41, state="inside", entered_ns=0, left_ns=0)
    died = replace(
        rank(2, phase="forward", line="/a/train.py:41"), exit=Exit(type="ValueError", text="no\nlabel", ns=1)
    )

    heading, first, *others = lines(rank(0, call=call), rank(1, call=call), replace(died, step=6))

    assert heading.split() == ["rank", "process", "step", "in", "for", "collective", "at", "said"]
    assert first.split()[:4] == ["2", "raised", "6", "forward"]
    assert "train.py:41" in first
    assert "ValueError" in first
    assert all("inside all_reduce.sum #41 of all ranks" in line for line in others)
    assert all(line.split()[:2] == [str(n), "unknown"] for n, line in enumerate(others))


def test_a_large_job_is_cut_and_says_so():
    found = lines(*[rank(n) for n in range(100)])

    assert len(found) == 66
    assert found[-1].startswith("36 ranks not shown")


def test_a_job_that_came_to_its_end_has_nothing_to_say():
    assert lines(*[rank(n, exit=Exit()) for n in range(3)]) == []
    assert lines() == []
