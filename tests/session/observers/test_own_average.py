"""An average that shares its memory with the weights is named; a true one, and decay by hand, are not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.nouns import Finding
from tests.session.observers.test_laws import findings

Average = Callable[[nn.Module], Callable[[], None]]
D = 0.99


def no_clone(model: nn.Module) -> Callable[[], None]:
    average = {name: p.data for name, p in model.named_parameters()}

    def move() -> None:
        for name, p in model.named_parameters():
            average[name].mul_(D).add_(p.data, alpha=1 - D)

    return move


def shallow(model: nn.Module) -> Callable[[], None]:
    teacher = copy.copy(model)

    def move() -> None:
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 1 - D)

    return move


def all_at_once(model: nn.Module) -> Callable[[], None]:
    average = [p.detach() for p in model.parameters()]

    def move() -> None:
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 1 - D)

    return move


def cloned(model: nn.Module) -> Callable[[], None]:
    average = {name: p.data.clone() for name, p in model.named_parameters()}

    def move() -> None:
        for name, p in model.named_parameters():
            average[name].mul_(D).add_(p.data, alpha=1 - D)

    return move


def decay(model: nn.Module) -> Callable[[], None]:
    def move() -> None:
        for p in model.parameters():
            p.data.add_(p.data, alpha=-1e-3)

    return move


def shrink(model: nn.Module) -> Callable[[], None]:
    def move() -> None:
        for p in model.parameters():
            p.data.mul_(0.999)

    return move


def two_halves(model: nn.Module) -> Callable[[], None]:
    weight: Tensor = model[0].weight

    def move() -> None:  # the rows of one matrix are pulled together
        weight.data[:4].lerp_(weight.data[4:], 1 - D)

    return move


@pytest.mark.parametrize("average", [no_clone, shallow, all_at_once])
def test_an_average_that_is_the_weights_is_told_once(average: Average, tmp_path: Path) -> None:
    (finding,) = told(average, tmp_path)

    assert (finding.step, finding.severity, finding.confidence) == (0, "warning", "proven")
    assert finding.title == "the average of 0.weight is 0.weight itself"
    assert "and 3 more like it" in finding.why[0]


@pytest.mark.parametrize("average", [cloned, decay, shrink, two_halves])
def test_what_is_none_is_left_alone(average: Average, tmp_path: Path) -> None:
    assert told(average, tmp_path) == []


def told(average: Average, out: Path) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out), audit="never"):
        optimizer, move = torch.optim.SGD(model.parameters(), 0.1), average(model)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            move()
    return [each for each in findings(out) if each.code == "HC261"]
