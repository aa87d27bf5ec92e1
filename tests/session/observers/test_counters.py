"""An Adam that counts a step for each parameter, or mixes its betas up, is told; one that counts right is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_day import first_of_each
from torch import nn
from torch.optim import Optimizer

import hypocenter
from tests.session.observers.test_laws import findings

Count = Callable[[int, int, int], int]
"""Of (step from 0, place of the parameter, number of parameters), the step by which the bias is corrected."""


class MyAdam(Optimizer):
    """As people write it; `size`: what else the update of a parameter is multiplied with."""

    def __init__(
        self,
        parameters: Any,
        count: Count,
        *,
        size: Callable[[torch.Tensor], Any] = lambda _: 1.0,
        square: float = 1e-3,
    ) -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.count, self.size, self.square, self.n = count, size, square, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for place, p in enumerate(held):
            state = self.state[p]
            if not state:
                state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
            state["m"].lerp_(p.grad, 0.1)
            state["v"].mul_(0.999).add_(p.grad.square(), alpha=self.square)
            t = self.count(self.n, place, len(held))
            mean, square = state["m"] / (1 - 0.9**t), state["v"] / (1 - 0.999**t)
            p.mul_(1 - 1e-4).sub_(1e-2 * mean / (square.sqrt() + 1e-8) * self.size(p))
        self.n += 1


def of_each(step: int, place: int, n: int) -> int:
    return step * n + place + 1


def of_all(step: int, place: int, n: int) -> int:
    return step + 1


def not_at_all(step: int, place: int, n: int) -> int:
    return 1 << 20


def late(step: int, place: int, n: int) -> int:
    return step + 2


def trusted(p: torch.Tensor) -> torch.Tensor:
    """A ratio of each layer's own, as of LAMB."""
    return p.norm().clamp(0.1, 10.0)


@pytest.mark.parametrize(
    ("make", "n"),
    first_of_each(
        [
            (lambda held: MyAdam(held, of_each), 1),
            (lambda held: MyAdam(held, of_all), 0),
            (lambda held: MyAdam(held, not_at_all), 0),
            (lambda held: MyAdam(held, late), 0),
            (lambda held: MyAdam(held, of_all, size=trusted), 0),
            (torch.optim.AdamW, 0),
        ],
        lambda case: case[1],
    ),
)
def test_a_step_is_counted_once(make: Callable[[Any], Optimizer], n: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()

    told = [(f.severity, f.step, f.title) for f in findings(tmp_path) if f.code == "HC235"]
    assert told == [("warning", 0, "MyAdam counts a step for each of 6 parameters")] * n


@pytest.mark.parametrize(("square", "n"), [(0.1, 1), (0.01, 1), (0.001, 0), (1.0, 0)])
def test_an_average_of_squares_keeps_as_much_as_it_takes_in(square: float, n: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = MyAdam(model.parameters(), of_all, square=square)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()

    told = [(f.severity, f.step, f.title) for f in findings(tmp_path) if f.code == "HC235"]
    assert told == [("warning", 1, "the state 'v' of MyAdam is no average of squares")] * n
