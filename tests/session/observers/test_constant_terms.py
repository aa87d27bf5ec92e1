"""A term of the loss that is made of gradients without a graph is told; gradients that are used otherwise are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

Loss = Callable[[nn.Sequential, Tensor], Tensor]


def train(out: Path, loss_of: Loss) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with hypocenter.watch(out=str(out)):
        for _ in range(6):
            loss = loss_of(model, torch.randn(8, 6))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [each for each in diagnose(open_run(out)).findings if "made of gradients" in each.title]


def fit(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x).squeeze(-1) - x.sum(1)).square().mean()


def penalty(model: nn.Module, x: Tensor, *, graph: bool) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=graph)
    return (slope.norm(dim=1) - 1).square().mean()


def added(model: nn.Sequential, x: Tensor) -> Tensor:
    return fit(model, x) + 10 * penalty(model, x, graph=False)


def subtracted_and_scaled(model: nn.Sequential, x: Tensor) -> Tensor:
    return -(penalty(model, x, graph=False) - fit(model, x)) / 2


def summed(model: nn.Sequential, x: Tensor) -> Tensor:
    return sum([fit(model, x), penalty(model, x, graph=False)]) / 2  # type: ignore[return-value]


def stacked(model: nn.Sequential, x: Tensor) -> Tensor:
    return torch.stack([fit(model, x), penalty(model, x, graph=False)]).mean()


def by_sample(model: nn.Sequential, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    energy = model(x).squeeze(-1)
    (force,) = torch.autograd.grad(energy.sum(), x, retain_graph=True)
    return ((energy - x.detach().sum(1)).square() + (force + 1).square().sum(1)).mean()


class Forces(nn.Module):
    """Inside of a module."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return fit(self.inner, x) + penalty(self.inner, x, graph=False)


def in_a_module(model: nn.Sequential, x: Tensor) -> Tensor:
    return Forces(model)(x)


FAULTS: tuple[Loss, ...] = (added, subtracted_and_scaled, summed, stacked, by_sample, in_a_module)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_a_constant_made_of_gradients_is_told_once(tmp_path: Path, fault: Loss) -> None:
    found = train(tmp_path / "run", fault)

    assert [(f.code, f.step, f.severity) for f in found] == [("HC233", 0, "warning")]
    assert found[0].source is not None
    assert "torch.autograd.grad(" in found[0].source.text


def with_a_graph(model: nn.Sequential, x: Tensor) -> Tensor:
    return fit(model, x) + 10 * penalty(model, x, graph=True)


def detached(model: nn.Sequential, x: Tensor) -> Tensor:
    """Who writes it wants the value only."""
    with torch.no_grad():
        shown = 2 * penalty_outside(model, x)
    return fit(model, x) + penalty(model, x, graph=False).detach() + shown


def penalty_outside(model: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return penalty(model, x, graph=False)


def of_no_weight(model: nn.Sequential, x: Tensor) -> Tensor:
    """A penalty that is not begun with yet."""
    return fit(model, x) + 0.0 * penalty(model, x, graph=False)


def adversarial(model: nn.Sequential, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(fit(model, x), x)
    return fit(model, x + 0.1 * slope) + fit(model, x.detach() + 0.1 * slope.sign())


def first_order_meta(model: nn.Sequential, x: Tensor) -> Tensor:
    weights = dict(model.named_parameters())
    slopes = torch.autograd.grad(fit(model, x), list(weights.values()))
    fast = {name: w - 0.05 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
    return (functional_call(model, fast, (x,)).squeeze(-1) - x.sum(1)).square().mean()


def balanced_by_gradients(model: nn.Sequential, x: Tensor) -> Tensor:
    """The weight of an adversarial term, as in VQGAN."""
    one, other = fit(model, x), functional.softplus(-model(x)).mean()
    last = model[2].weight
    (a,), (b,) = (torch.autograd.grad(loss, last, retain_graph=True) for loss in (one, other))
    return one + a.norm() / (b.norm() + 1e-4) * other


def only_looked_at(model: nn.Sequential, x: Tensor) -> Tensor:
    loss = fit(model, x)
    seen.append((loss + penalty(model, x, graph=False)).detach())
    return loss


seen: list[Tensor] = []
HEALTHY: tuple[Loss, ...] = (
    with_a_graph, detached, of_no_weight, adversarial, first_order_meta, balanced_by_gradients, only_looked_at,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda each: each.__name__)
def test_gradients_that_are_used_otherwise_are_no_fault(tmp_path: Path, healthy: Loss) -> None:
    assert train(tmp_path / "run", healthy) == []
