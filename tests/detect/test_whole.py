"""Doubts about jobs made by hand: only a whole recording of a program that ended well, with enough seen, has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypocenter.detect.endings import Job
from hypocenter.detect.whole import Looked, doubts
from hypocenter.nouns import Imported, Run
from hypocenter.record.whereabouts import Exit, Whereabouts

S = 1_000_000_000  # ns
SEEN = Looked(at=("losses", "gradients"))


def where(n=0, *, step=6, phase="outside", exit: Exit | None = None, world_size=1, **more):
    return Whereabouts(
        rank=n, world_size=world_size, host="h", pid=1, boot="b", pid_namespace=1, start_ticks=1, started_ns=0,
        step=step, phase=phase, changed_ns=100 * S, exit=exit, **more,
    )  # fmt: skip


ENDED = Exit(ns=101 * S)


def job(*seen, status="finished", code: int | None = 0, last=5, alive=False, world_size=1, ranks=(0,), **run):
    return Job(
        run=Run(format=1, name="r", status=status, exit_code=code, world_size=world_size, **run), now_ns=107 * S,
        ranks=ranks, whereabouts={w.rank: w for w in seen},
        liveness={w.rank: "running" if alive else "gone" for w in seen},
        first_steps=dict.fromkeys(ranks, 0), last_steps=dict.fromkeys(ranks, last),
    )  # fmt: skip


def test_a_program_that_ended_well_leaves_none():
    assert doubts(job(where(exit=ENDED)), SEEN) == ()


def test_a_recording_without_whereabouts_goes_by_how_the_program_ended():
    assert doubts(job(), SEEN) == ()
    assert doubts(job(status="failed", code=3), SEEN)[0] == "the program ended with exit code 3"


CRASHED = where(phase="backward", site="b.1", line="/a/t.py:9")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (job(where(), status="killed", code=137), "killed by SIGKILL in its own code"),
        (job(where(phase="update", seldom=True), status="killed", code=137), "in the update of step 6, or soon after"),
        (job(CRASHED, status="killed", code=139), "killed by SIGSEGV in the backward of step 6, at b.1 (t.py:9)"),
        (job(where()), "ended without a word (SIGKILL, os._exit)"),
        (job(where(exit=Exit(type="KeyboardInterrupt"))), "interrupted (KeyboardInterrupt)"),
        (job(where(exit=ENDED), status="failed", code=3), "ended with exit code 3"),
        (job(where(), status="running", code=None, alive=True), "it is still running: last step 5, 7.0 s ago"),
        (job(status="running", code=None), "the recording was not closed"),
        (job(where(step=60, exit=ENDED)), "the recording stopped after step 5, the program went on to step 60"),
        (job(where(exit=ENDED, not_recording=True)), "the recording stopped after step 5"),
        (job(where(exit=ENDED), warnings=("recording to r stopped (full)",)), "recording to r stopped"),
        (job(where(exit=ENDED, world_size=4), world_size=4), "ranks 1 to 3 left no recording"),
    ],
)  # fmt: skip
def test_what_is_short_of_that_is_said_with_what_was_looked_at(made, said):
    found = doubts(made, SEEN)

    assert said in found[0]
    assert found[-1] == "nothing wrong was found in steps 0 to 5; looked at: losses, gradients"


def test_of_the_dump_of_another_tool_nobody_asks_how_its_program_ended():
    made = job(status="running", code=None, imported=Imported(kind="msprobe"))

    assert doubts(made, SEEN) == ()


def test_a_loss_alone_is_not_enough_and_parameters_are():
    made = job(where(exit=ENDED))

    assert doubts(made, Looked(at=("losses",)))[0] == "nothing but the loss was seen"
    assert doubts(made, Looked())[0] == "no value was seen"
    assert doubts(made, Looked(at=("losses", "parameters"))) == ()


def test_parameters_that_stood_still_are_a_doubt_when_they_are_most():
    made = job(where(exit=ENDED))

    half, more = (replace(SEEN, n_trained=10, n_still=n) for n in (5, 6))

    assert doubts(made, half) == ()
    assert doubts(made, more)[0] == "6 of 10 parameters that got gradients did not move in the run"
    assert doubts(made, replace(more, lr_was_zero=True))[0].endswith("the learning rate was 0 at every step")


def test_without_a_step_only_the_end_is_told():
    made = replace(job(where(step=0), status="killed", code=137), first_steps={}, last_steps={})

    assert len(doubts(made, Looked())) == 1
