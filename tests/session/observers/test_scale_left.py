"""A scale that a program multiplies into its loss is taken out of all gradients; who divides some only is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

Divide = Callable[[nn.Sequential], None]


def divided(by: float, *names: str) -> Divide:
    def divide(model: nn.Sequential) -> None:
        for name, parameter in model.named_parameters():
            if not names or name in names:
                parameter.grad.div_(by)  # type: ignore[union-attr]

    return divide


def and_then(*all_of: Divide) -> Divide:
    return lambda model: [each(model) for each in all_of] and None


def told(out: Path, scale: float, divide: Divide, *, clips: bool) -> list[tuple[str, int | None, str]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, out=str(out)):
        for _ in range(9):
            optimizer.zero_grad()
            (model(torch.randn(8, 6)).square().mean() * scale).backward()
            divide(model)
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [(each.code, each.step, each.title) for each in findings(out) if each.severity != "note"]


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize(
    ("divide", "name", "factor"),
    [
        (divided(1024, "0.weight", "0.bias", "2.weight", "2.bias"), "4.weight", "1.02e+03"),
        (divided(1024, "4.bias"), "4.bias", "0.000977"),
    ],
    ids=["a layer is left out", "one alone"],
)
def test_who_divides_some_is_told(tmp_path: Path, divide: Divide, name: str, factor: str, clips: bool) -> None:
    title = f"the gradient of {name} is {factor} times the others': the loss is multiplied by 1024, and not all divided"

    assert told(tmp_path / "run", 1024.0, divide, clips=clips) == [("HC232", 0, title)]


@pytest.mark.parametrize(
    ("scale", "divide"),
    [
        (1024.0, divided(1024)),
        (1024.0, divided(1)),
        (1024.0, and_then(divided(1024), divided(10, "4.weight", "4.bias"))),
        (8.0, divided(8, "4.weight", "4.bias")),
        (1.0, divided(1024, "4.weight", "4.bias")),
    ],
    ids=["of all", "of none", "and a factor of its own", "a small one may be a weight", "a factor without a scale"],
)
def test_who_divides_all_or_means_it_is_not(tmp_path: Path, scale: float, divide: Divide) -> None:
    assert told(tmp_path / "run", scale, divide, clips=False) == []
