"""One deadline for all that is done again of one step."""

from __future__ import annotations

import datetime

import pytest
import torch
from torch import nn

import hypocenter.replay.deadline as deadlines
from hypocenter.config import Config
from hypocenter.diagnose.evidence import Evidence, TensorFacts
from hypocenter.nouns import Summary
from hypocenter.replay.case import Budget, Case, Scene
from hypocenter.replay.cure.rehearsal import Rehearsal
from hypocenter.replay.cure.search import OutOfBudget
from hypocenter.replay.deadline import ALONE_S, SHARE, Deadline, group_timeout_s
from hypocenter.replay.impossible import OutOfTime
from hypocenter.replay.investigate import Investigator
from hypocenter.replay.samples import named
from hypocenter.replay.tracing import Tracing
from hypocenter.session.recording import Session


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()  # of no module: what modules hold is put back after a replay


@pytest.fixture
def clock():
    CLOCK.now = 0.0
    return CLOCK


def test_the_time_runs_from_the_first_thing_done_again_and_anew_in_the_next_step(clock):
    deadline = Deadline(10.0, clock)
    clock.now = 1000.0
    assert deadline.left_s == 10.0

    clock.now = 1011.0
    assert deadline.is_over
    with pytest.raises(OutOfTime, match="the 10 s for which one step may hold up the job are over"):
        deadline.check()

    deadline.renew()
    clock.now = 5000.0
    assert deadline.left_s == 10.0


def test_a_replay_that_would_not_fit_is_not_begun(clock):
    deadline = Deadline(10.0, clock)
    with deadline.one("plain"):
        clock.now = 6.0

    with pytest.raises(OutOfTime, match=r"another replay \(6.0 s\) does not fit"), deadline.one("plain"):
        raise AssertionError("it was begun")
    with deadline.one("traced"):
        pass


def test_it_is_a_quarter_of_the_shortest_timeout_of_the_groups(tmp_path):
    assert group_timeout_s() is None
    assert pytest.approx(ALONE_S, abs=1.0) == Deadline().left_s
    distributed = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=datetime.timedelta(seconds=80)
    )
    try:
        assert Deadline().left_s == pytest.approx(80 * SHARE, abs=1.0)
        distributed.new_group([0], timeout=datetime.timedelta(seconds=40))
        assert Deadline().left_s == pytest.approx(40 * SHARE, abs=1.0)
    finally:
        distributed.destroy_process_group()


class Slow(nn.Module):
    """Each layer takes a second of the fake clock; its last operation overflows if asked to."""

    def __init__(self, n_layers=20):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(n_layers))
        self.factor = 1.0

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            CLOCK.now += 1.0
        return x * self.factor


@pytest.fixture
def failed_step(clock, tmp_path):
    """Makes replayer, names and case of a step that failed, before any update."""
    sessions = []

    def make(seconds, n_microbatches=1, factor=float("inf")):
        model = Slow()
        model.factor, model.optimizer = factor, torch.optim.SGD(model.parameters())
        session = Session(Config(), tmp_path / "run", owns_run=True)
        sessions.append(session)
        session.names.add_root(model)
        session.attach()
        for _ in range(n_microbatches):
            model(torch.ones(2, 4)).sum().backward()
        replayer = session.parts.replayer
        replayer.deadline = Deadline(seconds, clock)
        case = Case(
            id="step-000000-nonfinite-grad", trigger="nonfinite-grad", step=0, rank=0, world_size=1,
            microbatches=tuple(session.tape.microbatches), bad_params=("layers.0.weight",), n_params=40, loss=1.0,
            loss_scale=None, healthy_steps=3,
        )  # fmt: skip
        return replayer, session.names, case

    yield make
    for session in sessions:
        session.switch_off("enough seen")


def test_a_traced_replay_stops_in_the_middle_when_the_time_is_over(failed_step, clock):
    replayer, names, case = failed_step(5.0)
    before = clock.now

    outcome = Investigator(replayer, names).investigate(case, lambda _: None)

    assert 5.0 <= clock.now - before <= 6.0  # of the twenty seconds that it would take
    assert not outcome.evidence.reproduced
    assert "the 5 s for which one step may hold up the job are over" in outcome.evidence.why_not


def test_of_many_micro_batches_those_are_looked_at_for_which_there_is_time(failed_step, clock):
    replayer, names, case = failed_step(50.0, n_microbatches=8, factor=1.0)
    before = clock.now

    outcome = Investigator(replayer, names).investigate(case, lambda _: None)

    assert clock.now - before <= 51.0
    assert outcome.evidence.why_not.startswith("2 of 8 micro-batches were found to be finite; then another replay")


def test_a_cure_is_not_denied_because_time_was_over(failed_step, clock):
    replayer, names, case = failed_step(60.0)
    tracing = Tracing(replayer, names)
    tracer, _ = tracing.run(case.microbatches[0])
    scene = Scene(case=case, named=names.parameters(), tracer=tracer, microbatch=case.microbatches[0])
    rehearsal = Rehearsal(scene, replayer, tracing, Budget(replays=99, seconds=1e9))
    assert not rehearsal.finite()
    assert not rehearsal.was_late

    clock.now += 10.0  # ten are left, and a replay takes twenty
    with pytest.raises(OutOfBudget):
        rehearsal.finite()
    assert rehearsal.was_late


def test_samples_that_there_is_no_time_for_are_not_guessed():
    evidence = Evidence(leaf_kind="batch", leaf=TensorFacts(name="x", dtype="float32", shape=(9, 2), summary=Summary()))

    def is_sound(kept):
        raise OutOfTime("the 5 s are over")

    found = named(evidence, (3,), 8, is_sound)

    assert found.samples == ()
    assert found.notes == ("its samples were not looked for: the 5 s are over",)


def test_a_backend_that_does_not_tell_its_timeout_costs_nothing(monkeypatch):
    class Odd:
        _device_types = ("cpu",)

        def _get_backend(self, device):
            raise RuntimeError("no such thing")

    monkeypatch.setattr(deadlines.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(deadlines.torch.distributed.distributed_c10d._world, "_pg_map", {Odd(): None}, raising=False)

    assert group_timeout_s() is None
