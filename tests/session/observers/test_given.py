"""What a forward was given and a backward needs is not written over in between; what nobody needs any more may be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, FROM = 18, 8


class Net(nn.Module):
    def __init__(self, *, first: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.up, self.head = first, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.up(self.first(x))))


def told(out: Path, model: nn.Module, write: Callable[[Tensor, Tensor], object], *, is_late: bool = False) -> list[str]:
    """Train on one buffer of inputs and one of labels, and write into them between forward and backward."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = np.empty((8, 6), np.float32), np.empty((8,), np.int64)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    rng = np.random.default_rng(0)

    def fill() -> None:
        inputs[:], labels[:] = rng.normal(size=(8, 6)), rng.integers(0, 3, 8)

    fill()
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for step in range(N_STEPS):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            if step >= FROM and not is_late:
                write(x, y)
            loss.backward()
            if step >= FROM and is_late:
                write(x, y)
            optimizer.step()
            fill()
    found = [f for f in findings(out) if f.code == "HC264"]
    assert all((f.severity, f.step) == ("warning", FROM) for f in found)
    return [f.site for f in found]


def into_inputs(x: Tensor, y: Tensor) -> None:
    x.numpy()[:] = 1.0


def into_labels(x: Tensor, y: Tensor) -> None:
    y.numpy()[:] = 1


def through_data(x: Tensor, y: Tensor) -> None:
    x.data.add_(1.0)


def test_inputs_that_are_written_over_before_backward(tmp_path):
    assert told(tmp_path, Net(), into_inputs) == ["batch[0]"]


@pytest.mark.slow
@pytest.mark.parametrize(("write", "site"), [(into_labels, "loss input[1]"), (through_data, "batch[0]")])
def test_other_ways_to_write_over(write, site, tmp_path):
    assert told(tmp_path, Net(), write) == [site]


def test_what_backward_does_not_need(tmp_path):
    """The model has made its own of the input: a loader may fill the buffer again."""
    assert not told(tmp_path, Net(first=lambda x: x * 2.0), into_inputs)


@pytest.mark.slow
def test_what_is_written_when_backward_is_over(tmp_path):
    assert not told(tmp_path, Net(), into_inputs, is_late=True)


@pytest.mark.slow
def test_the_same_values_are_no_change(tmp_path):
    assert not told(tmp_path, Net(), lambda x, y: np.copyto(x.numpy(), x.numpy().copy()))


@pytest.mark.slow
def test_an_operation_of_torch_that_autograd_sees(tmp_path):
    """The input is not needed, and its version tells: nobody is accused."""
    assert not told(tmp_path, Net(first=torch.clone), lambda x, y: x.add_(1.0))


@pytest.mark.parametrize("is_next", [True, False])
def test_the_next_place_of_a_ring_of_buffers(is_next, tmp_path):
    """A prefetcher fills the next place of a ring of labels before backward; or, wrongly, this one."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ring = torch.zeros(2, 8, dtype=torch.int64)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for step in range(N_STEPS):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(torch.randn(8, 6)), ring[step % 2])
            ring.numpy()[(step + is_next) % 2] += np.where(ring.numpy()[(step + is_next) % 2] < 2, 1, -2)
            loss.backward()
            optimizer.step()
    assert [f.code for f in findings(tmp_path) if f.code == "HC264"] == ([] if is_next else ["HC264"])


def test_a_forward_that_nobody_goes_back_from(tmp_path):
    """Its buffer is filled again before another forward, whose backward it is not part of."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(8, 6)).astype(np.float32)
    x = torch.from_numpy(inputs)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            model(x)
            inputs[:] = rng.normal(size=(8, 6))
            model(x).square().mean().backward()
            optimizer.step()
            inputs[:] = rng.normal(size=(8, 6))
    assert not [f for f in findings(tmp_path) if f.code == "HC264"]


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def received(out: Path, *, n_buffers: int, first: Callable[[Tensor], Tensor] = lambda x: x, is_same: bool = False):
    """A stage of a pipeline: all micro-batches go forward, each from a buffer that is received into, and then back."""
    torch.manual_seed(0)
    model = Net(first=first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    buffers, sent = [torch.zeros(8, 6) for _ in range(n_buffers)], torch.randn(8, 6)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out / "run")):
        for _ in range(4):
            optimizer.zero_grad()
            pending = []
            for i in range(2):
                buffer = buffers[i % n_buffers]
                # torch counts no write of `recv`, for which two processes are needed; nor one to `data`
                dist.all_gather(list(buffer.data[None]), sent if is_same else torch.randn(8, 6))
                hidden = buffer.detach().requires_grad_()
                pending.append((hidden, model(hidden).square().mean() / 2))
            for hidden, loss in pending:
                loss.backward()
                dist.all_reduce(hidden.grad)
            optimizer.step()
    return [f for f in findings(out / "run") if f.code == "HC264"]


@pytest.mark.usefixtures("group")
def test_one_buffer_for_all_micro_batches_of_a_pipeline(tmp_path):
    (found,) = received(tmp_path, n_buffers=1)

    assert (found.severity, found.step, found.microbatch, found.site) == ("warning", 0, 0, "batch[0]")
    assert "what another rank sent" in found.why[1]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    "how", [{"n_buffers": 2}, {"n_buffers": 1, "first": lambda x: x * 2.0}, {"n_buffers": 1, "is_same": True}]
)
def test_buffers_of_a_pipeline_that_backward_does_not_need_any_more(tmp_path, how):
    """A buffer for each, an input that the stage has made its own of, and the same values again."""
    assert not received(tmp_path, **how)
