"""A micro-batch as a parcel, done with another rank's calls."""

import contextlib

import pytest
import torch
from torch import nn

from hypocenter.config import Config
from hypocenter.replay.engine import Replayer, ReplayImpossible
from hypocenter.replay.triage import wire_format
from hypocenter.replay.triage.again import Again
from hypocenter.replay.triage.bits import difference
from hypocenter.replay.triage.lent_microbatch import borrowed, parcel
from hypocenter.replay.triage.wire_format import Answer, Parcel
from hypocenter.session.recording import Session

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.parameters())  # without one, a backward is taken for the end of the step

    def forward(self, x, *, scale):
        return self.layers(x) * scale


def step(net, seed, tmp_path, *, scale=2.0):
    """One forward and backward; the session that has seen it, not yet updated."""
    torch.manual_seed(seed)
    session = Session(Config(), tmp_path / f"run-{seed}", owns_run=True)
    session.names.add_root(net)
    session.attach()
    loss = nn.functional.mse_loss(net(torch.randn(16, 4), scale=scale), torch.randn(16, 2))
    loss.backward()
    session.switch_off("enough seen")
    return session


def sent(session) -> Parcel:
    return wire_format.from_tensor(wire_format.to_tensor(parcel(session.tape, session.tape.microbatches[0])), Parcel)


def paused():
    return contextlib.nullcontext()


def test_a_neighbour_comes_to_the_same_bits(tmp_path):
    net = Net()
    theirs, ours = step(net, 1, tmp_path), step(net, 2, tmp_path)

    replayer, microbatch = borrowed(sent(theirs), ours.tape, ours.tape.microbatches[0], paused)
    elsewhere = Again(ours.parts.replayer, ours.names).bits(microbatch, replayer)

    at_home = Again(Replayer(theirs.tape, paused), theirs.names).bits(theirs.tape.microbatches[0])
    assert difference(at_home, elsewhere).names == ()
    assert len(difference(at_home, elsewhere).relative) > 4
    own = Again(ours.parts.replayer, ours.names).bits(ours.tape.microbatches[0])
    assert own.digest != at_home.digest


def test_other_arguments_are_another_step(tmp_path):
    net = Net()
    theirs, ours = step(net, 1, tmp_path, scale=3.0), step(net, 2, tmp_path)

    with pytest.raises(ReplayImpossible, match="not made of the same calls"):
        borrowed(sent(theirs), ours.tape, ours.tape.microbatches[0], paused)


def test_what_cannot_be_replayed_is_not_sent(tmp_path):
    session = step(Net(), 1, tmp_path)
    session.tape.microbatches[0].why_not = "because"

    assert sent(session).calls == ()
    assert sent(session).why_not == "because"


def test_bytes_that_are_no_parcel_are_nothing():
    assert wire_format.from_tensor(torch.tensor([1, 2, 3], dtype=torch.uint8), Parcel) is None
    assert wire_format.from_tensor(None, Answer) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_survive_the_way(dtype):
    tensor = (torch.randn(3, 5) * 4).to(dtype)

    assert torch.equal(wire_format.unpack(wire_format.pack(tensor), torch.device("cpu")), tensor)
