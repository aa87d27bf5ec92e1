"""A term of the loss that is made of indices or truth values alone is a note; one with a gradient or purpose is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

Loss = Callable[[nn.Module, Tensor], Tensor]


def fit(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x).sum(1) - x.sum(1)).square().mean()


def shares(model: nn.Module, x: Tensor) -> Tensor:
    """Of each class, of whole numbers."""
    return functional.one_hot(model(x).argmax(1), 3).float().mean(0)


def balance_of_counts(model: nn.Module, x: Tensor) -> Tensor:
    share = shares(model, x)
    return fit(model, x) + 0.1 * (share * share).sum()


def n_active(model: nn.Module, x: Tensor) -> Tensor:
    return (fit(model, x) + (model(x).abs() > 0.1).float().mean()) / 2


def balance(model: nn.Module, x: Tensor) -> Tensor:
    return fit(model, x) + 0.1 * (shares(model, x) * model(x).softmax(1).mean(0)).sum()


def said_to_be_constant(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        shown = shares(model, x).max()
    return fit(model, x) + shares(model, x).max().detach() + shown


def of_no_weight(model: nn.Module, x: Tensor) -> Tensor:
    return fit(model, x) + 0.0 * shares(model, x).max()


def value_of_another(model: nn.Module, x: Tensor) -> Tensor:
    """The gradient of one, the value of the other."""
    loss = fit(model, x)
    return (loss - loss.detach()) + shares(model, x).max()


def masked(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    mask = (out.abs() > 0.01).float()
    return (out.square() * mask).sum() / (mask.sum() + 1.0)


def straight_through(model: nn.Module, x: Tensor) -> Tensor:
    soft = model(x).softmax(1)
    hard = functional.one_hot(soft.argmax(1), 3).float()
    return ((hard - soft.detach() + soft) * x[:, :3]).sum(1).mean()


def steps_and_remainders(model: nn.Module, x: Tensor) -> Tensor:
    """As the cost of pondering: one sum of what is counted and what is not, by sample."""
    out = model(x).sigmoid()
    return fit(model, x) + 0.1 * ((out > 0.5).float().sum(1) + out.min(1).values).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_of", "n"),
    [
        (balance_of_counts, 1), (n_active, 1), (balance, 0), (said_to_be_constant, 0), (of_no_weight, 0),
        (value_of_another, 0), (masked, 0), (straight_through, 0), (steps_and_remainders, 0),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)  # fmt: skip
def test_a_term_of_counts_alone_is_a_note(loss_of: Loss, n: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(8):
            optimizer.zero_grad()
            loss_of(model, torch.randn(8, 4)).backward()
            optimizer.step()

    found = [each for each in diagnose(open_run(tmp_path)).findings if "made of counts" in each.title]

    assert [each.severity for each in found] == ["note"] * n
    assert all(each.source is not None and ("argmax" in each.source.text or ">" in each.source.text) for each in found)
