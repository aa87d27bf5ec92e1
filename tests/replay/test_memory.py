"""What an investigation takes of the memory, and that it gives it back."""

import contextlib
import gc

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from hypocenter.config import Config
from hypocenter.replay import investigate as investigation
from hypocenter.replay.case import Budget, Case, Scene
from hypocenter.replay.cure.rehearsal import Rehearsal
from hypocenter.replay.cure.search import OutOfBudget
from hypocenter.replay.engine import Replayer
from hypocenter.replay.investigate import Investigator
from hypocenter.replay.tracing import Tracing
from hypocenter.session.recording import Session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.parameters())  # without one, a backward is taken for the end of the step
        self.broken = False
        self.n_calls = 0
        self.held = []

    def forward(self, x):
        self.n_calls += 1
        h = torch.tanh(self.first(x))
        if self.broken:
            Net.held.append(StorageWeakRef(h.untyped_storage()))
            Net.n_broken += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return self.second(h)

    n_broken = 0
    held: list


@pytest.fixture
def step(tmp_path):
    """A step of three finite micro-batches, not yet updated: (net, session, case)."""
    torch.manual_seed(0)
    net = Net()
    Net.n_broken, Net.held = 0, []
    session = Session(Config(), tmp_path / "run", owns_run=True)
    session.names.add_root(net)
    session.attach()
    for _ in range(3):
        net(torch.randn(4, 8)).square().mean().backward()
    session.switch_off("enough seen")
    case = Case(
        id="x", trigger="nonfinite-grad", step=0, rank=0, world_size=1, microbatches=tuple(session.tape.microbatches),
        bad_params=("first.weight", "second.weight"), n_params=4, loss=1.0, loss_scale=None, healthy_steps=0,
    )  # fmt: skip
    return net, session, case


def investigator(session):
    return Investigator(Replayer(session.tape, contextlib.nullcontext), session.names)


def test_float64_sums_are_let_go_after_the_failed_step(step, monkeypatch):
    _, session, case = step
    made = []

    def noted(tensor):
        wide = tensor.double()
        made.append(StorageWeakRef(wide.untyped_storage()))
        return wide

    monkeypatch.setattr(investigation, "in_float64", noted)
    investigating = investigator(session)

    outcome = investigating.investigate(case, lambda microbatch: None)

    assert outcome.evidence.float64.absmax > 0
    gc.collect()
    assert len(made) == 6
    assert all(ref.expired() for ref in made)


def test_sums_that_there_is_no_room_for_are_left_out_and_accuse_nobody(step, monkeypatch):
    _, session, case = step
    monkeypatch.setattr(investigation, "MOST_BYTES", 8 * 8)  # second.weight only

    evidence = investigator(session).investigate(case, lambda microbatch: None).evidence

    assert not evidence.reproduced
    assert "too large to be added up" in evidence.why_not


def test_a_replay_that_runs_out_of_memory_gives_all_back_and_is_the_last(step):
    net, session, case = step
    net.broken = True

    evidence = investigator(session).investigate(case, lambda microbatch: None).evidence

    assert "out of memory" in evidence.why_not
    assert Net.n_broken == 1
    gc.collect()
    assert all(ref.expired() for ref in Net.held)


def test_the_search_for_a_cure_ends_where_there_is_no_memory(step):
    net, session, case = step
    replayer = Replayer(session.tape, contextlib.nullcontext)
    tracing = Tracing(replayer, session.names)
    tracer, _ = tracing.run(case.microbatches[0])
    scene = Scene(case=case, named=session.names.parameters(), tracer=tracer, microbatch=case.microbatches[0])
    rehearsal = Rehearsal(scene, replayer, tracing, Budget(replays=10, seconds=60.0))
    net.broken = True

    assert not rehearsal.finite()
    assert rehearsal.is_spent
    with pytest.raises(OutOfBudget):
        rehearsal.finite()
    assert Net.n_broken == 1


def test_a_rehearsal_of_a_large_model_sums_no_gradients(step, monkeypatch):
    from hypocenter.replay.cure import rehearsal as rehearsing

    _, session, case = step
    replayer = Replayer(session.tape, contextlib.nullcontext)
    tracing = Tracing(replayer, session.names)
    tracer, _ = tracing.run(case.microbatches[0])
    scene = Scene(case=case, named=session.names.parameters(), tracer=tracer, microbatch=case.microbatches[0])
    rehearsal = Rehearsal(scene, replayer, tracing, Budget(replays=10, seconds=60.0))
    monkeypatch.setattr(rehearsing, "MOST_ELEMENTS", 8)

    found = rehearsal.rehearse()

    assert found.finite
    assert found.gradients == (None,) * 4
