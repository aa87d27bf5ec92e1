"""Whether the gradient of each micro-batch arrives in what is accumulated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.microbatch_rows import NOT_ADDED
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


class Program:
    """Four micro-batches a step; each trait or overridden method is a way to accumulate."""

    dtype, n_micro = torch.float32, 4

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(self.dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def loss(self, number):
        return self.model(torch.randn(8, 4, dtype=self.dtype)).float().square().mean()

    def after(self, number):
        """After the backward of a micro-batch."""

    def run(self, n_steps=3):
        for _ in range(n_steps):
            for number in range(self.n_micro):
                self.loss(number).backward()
                self.after(number)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return [p.detach().clone() for p in self.model.parameters()]


class MainGrad(Program):
    """Post-accumulate hooks hand gradients to main_grad."""

    def __init__(self) -> None:
        super().__init__()
        for p in self.model.parameters():
            p.main_grad, p.n_added = torch.zeros_like(p), 0
            p.register_post_accumulate_grad_hook(self.write)

    def adds(self, parameter) -> bool:
        return True

    def write(self, parameter):
        if self.adds(parameter):
            parameter.main_grad += parameter.grad
        parameter.n_added += 1
        parameter.grad = None


class FirstOnly(MainGrad):
    def adds(self, parameter):
        return parameter.n_added % self.n_micro == 0


class FirstOnlyForOne(FirstOnly):
    def adds(self, parameter):
        return super().adds(parameter) or parameter is not self.model[2].bias


class Fused(FirstOnly):
    """A kernel adds to main_grad: what autograd hands over is a dummy, and nothing can be told from it."""

    def __init__(self) -> None:
        super().__init__()
        for p in self.model.parameters():
            p.grad_added_to_main_grad = True


class Frozen(Program):
    def __init__(self) -> None:
        super().__init__()
        self.model[0].requires_grad_(False)


class Masked(Program):
    """A hook makes the gradient of a layer zero."""

    def __init__(self) -> None:
        super().__init__()
        self.model[0].weight.register_hook(torch.zeros_like)


class LossOfZero(Program):
    def loss(self, number):
        return super().loss(number) * (number == 0)


class TakenAway(Program):
    """The program keeps sums of its own."""

    def after(self, number):
        for p in self.model.parameters():
            p.grad = None if number < self.n_micro - 1 else p.grad


class ZeroedBetween(Program):
    def after(self, number):
        if number < self.n_micro - 1:
            self.optimizer.zero_grad(set_to_none=False)


class IdleExpert(Program):
    """From the second micro-batch on, one part of the model is not called."""

    def loss(self, number):
        if number == 0:
            return super().loss(number)
        return self.model[2](torch.randn(8, 8)).square().mean()


class Rounds(Program):
    """Later gradients are too small for bfloat16 to add: another rule's business."""

    dtype = torch.bfloat16

    def loss(self, number):
        return super().loss(number) * (1.0 if number == 0 else 1e-9)


def found(out):
    return [f for f in diagnose(open_run(out)).findings if f.code == "HC332"]


@pytest.mark.parametrize(("program", "n"), [(FirstOnly, 4), (FirstOnlyForOne, 1)])
def test_a_gradient_that_does_not_arrive_is_said_once(tmp_path, program, n):
    with hypocenter.watch(out=str(tmp_path / "run")):
        program().run()

    (finding,) = found(tmp_path / "run")
    assert (finding.step, finding.microbatch, finding.severity, finding.confidence) == (0, 1, "warning", "proven")
    assert finding.actual == n


@pytest.mark.parametrize(
    "program",
    [Program, MainGrad, Fused, Frozen, Masked, LossOfZero, TakenAway, ZeroedBetween, IdleExpert, Rounds],
)
def test_what_arrives_or_need_not_is_silent(tmp_path, program):
    with hypocenter.watch(out=str(tmp_path / "run")):
        program().run()

    assert found(tmp_path / "run") == []
    assert not [r for r in open_run(tmp_path / "run").readings(phase="optimizer") if r.port == NOT_ADDED]


def test_one_micro_batch_a_step_is_not_looked_at(tmp_path):
    class Single(FirstOnly):
        n_micro = 1

        def adds(self, parameter):
            return False

    with hypocenter.watch(out=str(tmp_path / "run")):
        Single().run()

    assert found(tmp_path / "run") == []


@pytest.mark.parametrize("program", [Program, FirstOnly])
def test_weights_are_the_same_bits(tmp_path, program):
    plain = program().run()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = program().run()

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
