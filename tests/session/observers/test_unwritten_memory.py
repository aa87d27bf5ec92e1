"""The law of unwritten memory: who reads `torch.empty` before it is written is named; who writes first is not."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.replay.engine import Replayer
from hypocenter.session.spike_probe import SpikeProbe
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.poison import Poison

ELSEWHERE = random.Random(0)  # whose state nobody puts back


class Pool(nn.Module):
    """Means of pairs of neighbours, by way of memory that `how` fills."""

    def __init__(self, how):
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.how(x) * self.weight


def forgets_the_last_row(x):
    memory = torch.empty(x.shape[0] + 1, x.shape[1])
    memory[:-2] = x[:-1]
    memory[-1] = 0.0
    return x + memory[1:]


def in_backward(x):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            out = torch.empty_like(grad)
            out[1:] = grad[1:] * 2
            return out + 0

    return Double.apply(x)


def hands_it_on(x):
    spare = [torch.empty(3) for _ in range(5)]  # nobody reads these
    memory = torch.empty(x.shape)
    assert len(spare) == 5
    return memory + x


def undoes_nan(x):
    memory = torch.empty(x.shape).nan_to_num(0.0)
    return memory + x


def draws_elsewhere(x):
    """No replay is like the run, and it is not for memory, which is written first."""
    memory = torch.empty_like(x)
    memory.copy_(x)
    return memory + ELSEWHERE.random()


def refuses_ones(x):
    if (torch.empty(x.shape) == 1.0).all():
        raise ValueError("ones")
    return x * (1.0 + ELSEWHERE.random())


def writes_all(x):
    memory = torch.empty_like(x)
    memory.copy_(x)
    return memory * 2


def leaves_it_out_by_beta(x):
    shape = (1, x.shape[0], x.shape[0])
    return torch.baddbmm(torch.empty(shape), x[None], x.t()[None], beta=0.0)[0] @ x


def masks_it(x):
    memory = torch.empty_like(x)
    memory[:2] = x[:2]
    mask = torch.arange(len(x)) < 2
    return torch.where(mask[:, None], memory, x)


def reads_what_it_has_written(x):
    memory = x.new_empty(2 * len(x), x.shape[1])
    memory[: len(x)] = x
    return memory[: len(x)] + torch.empty(0, x.shape[1]).sum()


def train(how, out: Path | None, n_steps: int = 6, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), Pool(how), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []

    def steps():
        for _ in range(n_steps):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 3)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    if out is None:
        steps()
        return losses
    with hypocenter.watch(model, optimizer, out=out, **options):
        steps()
    return losses


def fill_memory_with_zeros(monkeypatch, *, nan_at=None):
    """What an allocator mostly gives; by no operator, and not where the law has filled it.

    Args:
        nan_at: one tensor of the size of `forgets_the_last_row`, by its number, that holds NaN instead.
    """
    n_made = itertools.count()

    def fresh(real, *args, **kwargs):
        made = real(*args, **kwargs)
        if not any(isinstance(mode, Poison) for mode in _get_current_dispatch_mode_stack()):
            ctypes.memset(made.data_ptr(), 0xFF if made.shape == (6, 4) and next(n_made) == nan_at else 0, made.nbytes)
        return made

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, functools.partial(fresh, getattr(torch, name)))


def findings(directory: Path):
    return [each for each in diagnose(open_run(directory)).findings if each.severity in ("warning", "error")]


@pytest.mark.parametrize(
    ("how", "op", "text"),
    [
        (forgets_the_last_row, "aten.add.Tensor", "return x + memory[1:]"),
        (in_backward, "aten.add.Tensor", "out + 0"),
        (hands_it_on, "aten.add.Tensor", "return memory + x"),
    ],
)
def test_the_reader_and_the_maker_are_named(tmp_path, monkeypatch, how, op, text):
    fill_memory_with_zeros(monkeypatch)

    train(how, tmp_path / "run")
    (found,) = [each for each in findings(tmp_path / "run") if each.code == "HC234"]

    assert (found.step, found.cause, found.confidence, found.op) == (0, "uninitialised-read", "proven", op)
    assert found.site == "1"
    assert text in found.source.text
    assert f"made at {__file__}:" in found.why[0]


def test_a_nan_that_lay_in_memory_once_accuses_no_device(tmp_path, monkeypatch):
    fill_memory_with_zeros(monkeypatch, nan_at=3)

    losses = train(forgets_the_last_row, tmp_path / "run", audit="never")
    found = {each.code: each for each in findings(tmp_path / "run")}

    assert losses[2] == losses[2] != losses[3]  # a NaN at step 3
    assert found["HC234"].step == 3
    assert not {"HC341", "HC342", "HC343"} & found.keys()


def test_numbers_tell_of_memory_where_nan_is_undone(tmp_path, monkeypatch):
    n_made = itertools.count(1)

    def fresh(real, *args, **kwargs):
        made = real(*args, **kwargs)
        if made.numel() and not any(isinstance(mode, Poison) for mode in _get_current_dispatch_mode_stack()):
            (ctypes.c_float * made.numel()).from_address(made.data_ptr())[:] = [float(next(n_made))] * made.numel()
        return made

    monkeypatch.setattr(torch, "empty", functools.partial(fresh, torch.empty))
    train(undoes_nan, tmp_path / "run")
    (found,) = [each for each in findings(tmp_path / "run") if each.code == "HC234"]

    assert (found.step, found.cause, found.op, found.site) == (0, "uninitialised-read", "aten.empty.memory_format", "1")
    assert found.title == "what empty gives is read, and nobody has written it"
    assert "with ones in a tensor of empty" in found.why[0]


@pytest.mark.parametrize("how", [draws_elsewhere, refuses_ones])
def test_a_replay_that_is_unlike_the_run_for_another_reason_accuses_no_memory(tmp_path, capfd, how):
    train(how, tmp_path / "run")

    assert not [each for each in findings(tmp_path / "run") if each.code == "HC234"]
    assert "switched off" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", [writes_all, leaves_it_out_by_beta, masks_it, reads_what_it_has_written])
def test_who_writes_before_reading_is_not_accused_and_training_stays_the_same(tmp_path, how):
    plain = train(how, None)

    assert train(how, tmp_path / "run") == plain
    assert findings(tmp_path / "run") == []


def test_what_a_program_has_written_and_kept_is_left_as_it_is():
    kept = []
    mode = Poison(OpContext(lambda module: None))
    with mode:
        kept.append(torch.empty(6))
        kept[0][:4] = torch.arange(4.0)
    mode.clean()

    assert kept[0].tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]


def test_an_audit_looks_at_memory_in_the_replay_that_it_does_anyway(tmp_path, monkeypatch):
    steps = []
    run = Replayer.run

    def counted(self, microbatch, *args, **options):
        steps.append(microbatch.batch)
        return run(self, microbatch, *args, **options)

    monkeypatch.setattr(Replayer, "run", counted)
    monkeypatch.setattr(SpikeProbe, "_is_due", lambda self, step: False)
    train(writes_all, tmp_path / "run", audit="1,2,3", relations="never")

    assert [steps.count(step) for step in (1, 2, 3)] == [1, 1, 1]


def test_a_program_that_refuses_nan_is_audited_all_the_same(tmp_path, monkeypatch):
    fill_memory_with_zeros(monkeypatch)

    def refuses(x):
        out = forgets_the_last_row(x)
        if out.isnan().any():
            raise ValueError("not a number")
        return out

    train(refuses, tmp_path / "run")
    found = {each.code: each for each in findings(tmp_path / "run")}

    assert found["HC234"].cause == "uninitialised-read"
