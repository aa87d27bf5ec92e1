"""A clip that does not act on what is used is named; who measures, or clips group by group, is not."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

Loop = Callable[[nn.Sequential, torch.optim.Optimizer], None]
N_STEPS = 10


def clip(model: nn.Module, max_norm: float = 0.1) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def backward(model: nn.Module) -> None:
    model(torch.randn(8, 6)).square().mean().backward()


def after_the_update(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    clip(model)


def before_backward(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)
    clip(model)
    backward(model)
    optimizer.step()


def the_head_alone(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    clip(model[2])
    optimizer.step()


def another_model(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    clip(nn.Linear(2, 2))
    optimizer.step()


USED_UP: dict[int, Iterator[nn.Parameter]] = {}


def used_up(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    nn.utils.clip_grad_norm_(USED_UP.setdefault(id(model), model.parameters()), 0.1)
    optimizer.step()


def as_it_should_be(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for _ in range(2):
        backward(model)
    clip(model)
    optimizer.step()


def part_by_part(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    clip(model[0])
    clip(model[2])
    optimizer.step()


def measured_afterwards(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    clip(model, math.inf)


def each_microbatch(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for _ in range(2):
        backward(model)
        clip(model)
    optimizer.step()


def by_sample(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    total = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        backward(model)
        clip(model)
        for mine, p in zip(total, model.parameters(), strict=True):
            mine += p.grad
    for mine, p in zip(total, model.parameters(), strict=True):
        p.grad = mine
    optimizer.step()


def that_never_acts(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for _ in range(2):
        backward(model)
        clip(model, 1e6)
    optimizer.step()


def of_another_loss(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    clip(model)
    (0.1 * model[0].weight.square().mean()).backward()
    optimizer.step()


def each_alone(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_(parameter, 0.1)
    optimizer.step()


def told(loop: Loop, out: Path) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for _ in range(N_STEPS):
            loop(model, optimizer)
    return [(each.code, each.severity) for each in findings(out)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "severity"),
    [
        (after_the_update, "warning"),
        (before_backward, "warning"),
        (another_model, "warning"),
        (used_up, "warning"),
        (the_head_alone, "note"),
        (each_alone, "note"),
        (each_microbatch, "warning"),
    ],
)
def test_a_clip_that_does_not_act_is_named(loop: Loop, severity: str, tmp_path: Path) -> None:
    assert told(loop, tmp_path) == [("HC238", severity)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop", [as_it_should_be, part_by_part, measured_afterwards, by_sample, that_never_acts, of_another_loss]
)
def test_one_that_acts_or_measures_is_not(loop: Loop, tmp_path: Path) -> None:
    assert told(loop, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("begins", [2, 7])
def test_what_is_unfrozen_later_and_left_out_of_the_clips_is_told_since_when(begins: int, tmp_path: Path) -> None:
    def at(step: int, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        if step == begins:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters()})
        optimizer.zero_grad()
        backward(model)
        clip(model[2])
        optimizer.step()

    found = told_of(at, tmp_path)

    late = [("HC238", "warning", 7, "0.bias")]  # at step 2 nobody knows yet whether a part is clipped on purpose
    assert found == (late if begins == 7 else [])


@pytest.mark.slow
def test_a_clip_that_moves_behind_the_update_is_told_since_when(tmp_path: Path) -> None:
    def at(step: int, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        (as_it_should_be if step < 6 else after_the_update)(model, optimizer)

    assert told_of(at, tmp_path) == [("HC238", "warning", 6, None)]


@pytest.mark.slow
def test_experts_that_come_and_go_are_clipped_whole(tmp_path: Path) -> None:
    def at(step: int, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (model[2](model[0](torch.randn(8, 6))) if step % 3 else model[2](torch.randn(8, 8))).square().mean().backward()
        clip(model)
        optimizer.step()

    assert told_of(at, tmp_path) == []


def told_of(
    at: Callable[[int, nn.Sequential, torch.optim.Optimizer], None], out: Path
) -> list[tuple[str, str, int, str | None]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for step in range(14):
            at(step, model, optimizer)
    return [(each.code, each.severity, each.step, each.param) for each in findings(out) if each.code == "HC238"]
