"""A weight whose gradients cancel out on its ways is told; one whose ways all bring nothing is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from by_day import first_of_each
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS = 8


class Net(nn.Module):
    """A part that is judged, and one that learns in any case."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.other = nn.Linear(4, 1)
        self.bias_of = nn.Embedding(3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.part(x), self.other(x)


Loss = Callable[[Net, Tensor], Tensor]


def its_own_old_value(net: Net, x: Tensor) -> Tensor:
    """As of a policy whose old log-probabilities keep their graph."""
    new, value = net(x)
    old, _ = net(x)
    ratio = (new.log_softmax(-1)[:, 0] - old.log_softmax(-1)[:, 0]).exp()
    return value.square().mean() - (ratio * x[:, 0]).mean()


def in_bfloat16(net: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return its_own_old_value(net, x).float()


def its_old_value_is_a_constant(net: Net, x: Tensor) -> Tensor:
    new, value = net(x)
    ratio = (new.log_softmax(-1)[:, 0] - new.log_softmax(-1)[:, 0].detach()).exp()
    return value.square().mean() - (ratio * x[:, 0]).mean()


def times_nothing(net: Net, x: Tensor) -> Tensor:
    """A term that has no weight yet, and two uses that DDP is to see."""
    made, value = net(x)
    return value.square().mean() + 0.0 * made.square().mean() + 0.0 * net(x)[0].sum()


def a_dead_part(net: Net, x: Tensor) -> Tensor:
    made, value = net(x)
    return value.square().mean() + (made - 99.0).relu().sum() - (net(-x)[0] - 99.0).relu().sum()


def a_difference_of_scores(net: Net, x: Tensor) -> Tensor:
    """The bias of the last layer is subtracted from itself."""
    chosen, value = net(x)
    rejected, _ = net(x.flip(0) + 1.0)
    return value.square().mean() - functional.logsigmoid(chosen - rejected).mean()


def a_difference_of_scores_of_one_user(net: Net, x: Tensor) -> Tensor:
    """As of a factorisation that ranks: each user has a bias, and all that are compared are of the user."""
    users = torch.arange(len(x)) % 3
    chosen, rejected = (net.part(each)[:, 0] + net.bias_of(users).squeeze(-1) for each in (x, x.flip(0) + 1.0))
    return net.other(x).square().mean() - functional.logsigmoid(chosen - rejected).mean()


def alike_twice(net: Net, x: Tensor) -> Tensor:
    """Consistency of two passes, in a model without dropout, beside a loss of its own."""
    one, value = net(x)
    two, _ = net(x)
    return value.square().mean() + (one - two).square().mean() + one.square().mean()


@pytest.mark.parametrize(
    ("loss", "n"),
    first_of_each(
        [
            (its_own_old_value, 1), (in_bfloat16, 1), (its_old_value_is_a_constant, 0), (times_nothing, 0),
            (a_dead_part, 0), (a_difference_of_scores, 0), (a_difference_of_scores_of_one_user, 0),
            (alike_twice, 0),
        ],
        lambda case: case[1],
    ),
)  # fmt: skip
def test_gradients_that_cancel_out(loss: Loss, n: int, tmp_path: Path) -> None:
    assert told(tmp_path, loss) == [("warning", 0, "part.0.weight")] * n


def test_one_that_the_program_sets_to_nothing_is_held_still_on_purpose(tmp_path: Path) -> None:
    def hold_still(net: Net) -> None:
        for parameter in net.part.parameters():
            parameter.register_hook(torch.zeros_like)

    assert not told(tmp_path, a_difference_of_scores, hold_still)


def test_it_changes_no_bit(tmp_path: Path) -> None:
    def trained(*, is_watched: bool) -> list[Tensor]:
        nets: list[Net] = []
        if is_watched:
            told(tmp_path, its_own_old_value, nets.append)
        else:
            train(its_own_old_value, nets.append)
        return [p.detach() for p in nets[0].parameters()]

    assert all(map(torch.equal, trained(is_watched=True), trained(is_watched=False)))


def told(out: Path, loss: Loss, prepare: Callable[[Net], object] = bool) -> list[tuple[str, int, str | None]]:
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        train(loss, prepare)
    return [(f.severity, f.step, f.site) for f in findings(out) if "cancels out" in f.title]


def train(loss: Loss, prepare: Callable[[Net], object]) -> None:
    torch.manual_seed(0)
    net = Net()
    prepare(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        loss(net, torch.randn(8, 4)).backward()
        optimizer.step()


def test_a_gradient_of_another_kind_does_not_break_the_backward(tmp_path: Path) -> None:
    class Complex(nn.Module):
        """Its weights are complex numbers, and cancel out."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.to(torch.complex64) @ self.weight
            return (out - out).abs().sum(1) + (x * self.scale).sum(1)

    model = Complex()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run")):
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
