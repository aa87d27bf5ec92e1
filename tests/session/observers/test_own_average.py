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


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.data for name, p in model.named_parameters()}


def copied_over(model: nn.Module, values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values[name])


def assigned(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, p in model.named_parameters():
        p.data = values[name]


def loaded(model: nn.Module, values: dict[str, Tensor]) -> None:
    model.load_state_dict(values)


def no_evaluation(model: nn.Module) -> None:
    """Nobody computes with the other values: weights that lie in one memory with their own float32 copy."""


def evaluation(model: nn.Module) -> None:
    with torch.no_grad():
        model.eval()(torch.randn(8, 6))
    model.train()


Put = Callable[[nn.Module, dict[str, Tensor]], None]


@pytest.mark.parametrize(
    ("put", "evaluate", "is_cloned", "is_told"),
    [
        (copied_over, evaluation, False, True),
        (loaded, evaluation, False, True),
        (copied_over, evaluation, True, False),
        (loaded, evaluation, True, False),
        (assigned, evaluation, False, False),  # which exchanges the memory, and so is right
        (copied_over, no_evaluation, False, False),
    ],
)
def test_weights_that_are_put_back_by_themselves_are_told_at_once(
    put: Put, evaluate: Callable[[nn.Module], None], is_cloned: bool, is_told: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    average = {name: p.data.clone() for name, p in model.named_parameters()}
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(12):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            if step in (5, 8):
                kept = weights_of(model) if put is not loaded else model.state_dict()
                kept = {name: value.clone() for name, value in kept.items()} if is_cloned else kept
                put(model, average)
                evaluate(model)
                put(model, kept)

    found = [each for each in findings(tmp_path) if each.code == "HC261"]

    words = ("what is put back as 0.weight is 0.weight itself", 6, "warning")
    assert [(each.title, each.step, each.severity) for each in found] == ([words] if is_told else [])


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
