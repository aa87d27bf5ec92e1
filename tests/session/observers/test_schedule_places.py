"""A schedule that steps twice, for another optimizer, past its end or anew is named; a usual one is not."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.optim import lr_scheduler

import hypocenter
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from tests.session.observers.test_laws import findings

Program = Callable[[nn.Module], None]
N_STEPS = 12


def adam(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr)


def transformers_linear(optimizer: torch.optim.Optimizer, length: int) -> lr_scheduler.LRScheduler:
    return transformers.get_linear_schedule_with_warmup(optimizer, 2, length)


def falling(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.ExponentialLR(optimizer, 0.9)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()


def twice(model: nn.Module) -> None:
    optimizer = adam(model)
    schedule = falling(optimizer)
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()
        schedule.step()


def of_another(model: nn.Module) -> None:
    schedule, optimizer = falling(adam(model)), adam(model)
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


def of_one_that_was_replaced(model: nn.Module) -> None:
    optimizer = adam(model)
    schedule = falling(optimizer)
    for step in range(N_STEPS + 5):
        if step == 5:
            optimizer = adam(model)
        update(model, optimizer)
        schedule.step()


def past_its_end(model: nn.Module) -> None:
    optimizer = adam(model)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, N_STEPS // 2)
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


def anew(model: nn.Module) -> None:
    first, optimizer = adam(model), adam(model)
    for _ in range(5):
        update(model, first)
    optimizer.load_state_dict(first.state_dict())
    schedule = falling(optimizer)
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


def state_lost(model: nn.Module) -> None:
    first, optimizer = adam(model), adam(model)
    before, schedule = falling(first), falling(optimizer)
    for _ in range(5):
        update(model, first)
        before.step()
    schedule.load_state_dict(before.state_dict())
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


def by_stages(model: nn.Module) -> None:
    """More is trained in each stage, by an Adam of its own; one schedule goes on over both."""
    assert isinstance(model, nn.Sequential)
    for n_before, part in ((0, model[-1]), (6, model)):
        optimizer = adam(part)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        schedule = lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / 20, last_epoch=n_before - 1)
        for _ in range(6):
            update(model, optimizer)
            schedule.step()


def each_epoch(model: nn.Module, length: int, make: Callable[[torch.optim.Optimizer, int], Any]) -> None:
    """24 updates, in epochs of six."""
    optimizer = adam(model)
    schedule = make(optimizer, length)
    for step in range(24):
        update(model, optimizer)
        if step % 6 == 5:
            schedule.step()


def one_cycle(optimizer: torch.optim.Optimizer, length: int) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=length)


@pytest.mark.parametrize("make", [one_cycle, lr_scheduler.CosineAnnealingLR, transformers_linear])
def test_a_schedule_of_all_updates_that_steps_once_an_epoch(make: Any, tmp_path: Path) -> None:
    ((severity, title),) = told(lambda model: each_epoch(model, 24, make), tmp_path)

    assert severity == "warning"
    assert re.fullmatch(r"\w+ has stepped [45] times of 24", title)


@pytest.mark.parametrize("length", [5, 48])
def test_a_schedule_of_epochs_or_of_a_longer_run(length: int, tmp_path: Path) -> None:
    assert told(lambda model: each_epoch(model, length, one_cycle), tmp_path) == []


def resumed(model: nn.Module) -> None:
    """24 updates; a new optimizer and schedule go on with the states of the first ones after four."""
    optimizer = adam(model)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 24)
    for step in range(24):
        if step == 4:
            states, optimizer = (optimizer.state_dict(), schedule.state_dict()), adam(model)
            optimizer.load_state_dict(states[0])
            schedule = lr_scheduler.CosineAnnealingLR(optimizer, 24)
            schedule.load_state_dict(states[1])
        update(model, optimizer)
        schedule.step()


def test_one_that_another_goes_on_with(tmp_path: Path) -> None:
    assert told(resumed, tmp_path) == []


OF_ANOTHER = ("warning", "ExponentialLR sets the learning rate of an optimizer that is not used")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (twice, ("warning", "ExponentialLR steps twice for each update")),
        (of_another, ("warning", "ExponentialLR sets the learning rate of an optimizer that is not used")),
        (
            of_one_that_was_replaced,
            ("warning", "ExponentialLR sets the learning rate of an optimizer that is not used"),
        ),
        (past_its_end, ("note", "CosineAnnealingLR goes on past its end")),
        (state_lost, ("warning", "ExponentialLR goes on, and the state of its optimizer begins anew")),
        (anew, ("note", "ExponentialLR begins anew, and its optimizer goes on")),
    ],
)
def test_a_schedule_out_of_step_is_told_once(program: Program, said: tuple[str, str], tmp_path: Path) -> None:
    assert told(program, tmp_path) == [said]


def test_one_of_an_optimizer_that_was_replaced_says_since_when_and_what_to_do(tmp_path: Path) -> None:
    found = told_whole(of_one_that_was_replaced, tmp_path)

    assert [f.step for f in found] == [5]
    assert found[0].remedy is not None
    assert "make ExponentialLR anew" in found[0].remedy.text
    assert len(open_run(tmp_path).step_records()) == N_STEPS + 5  # though the schedule keeps the old one alive


@pytest.mark.slow
@pytest.mark.parametrize(("program", "step"), [(twice, 0), (anew, 5), (state_lost, 5)])
def test_it_began_at_the_first_of_the_steps_that_tell_it(program: Program, step: int, tmp_path: Path) -> None:
    assert [f.step for f in told_whole(program, tmp_path)] == [step]


def test_a_model_that_is_made_anew_goes_on_with_the_steps_of_the_old_one(tmp_path: Path) -> None:
    def resumed(model: nn.Module) -> None:
        old = None
        for step in range(N_STEPS):
            if step in (0, 5):
                model, old = copy.deepcopy(model), (model, old)
                optimizer = adam(model)
                schedule = falling(optimizer)
            update(model, optimizer)
            schedule.step()

    told_whole(resumed, tmp_path)

    assert len(open_run(tmp_path).step_records()) == N_STEPS


def over_at(step: int) -> Program:
    def train(model: nn.Module) -> None:
        optimizer = adam(model)
        schedule = lr_scheduler.LambdaLR(optimizer, lambda n: max(0.0, 1.0 - n / step) if step else 0.0)
        for _ in range(20):
            update(model, optimizer)
            schedule.step()

    return train


def test_one_that_is_over_long_before_the_run(tmp_path: Path) -> None:
    (found,) = told_whole(over_at(6), tmp_path)

    assert (found.severity, found.step) == ("warning", 6)
    assert found.title == "LambdaLR is over before training: the last 14 of 20 updates have a learning rate of 0"


@pytest.mark.parametrize("step", [0, 16, 20], ids=["from the start", "four updates", "at the end"])
def test_one_that_is_over_a_little_before_or_never_moved_anything(step: int, tmp_path: Path) -> None:
    assert told(over_at(step), tmp_path) == []


def in_turns(model: nn.Module) -> None:
    """Two optimizers of the same parameters, one of them on a schedule, in long turns."""
    own, other = adam(model), adam(model)
    schedule = falling(own)
    for step in range(3 * N_STEPS):
        update(model, own if step % 8 < 3 else other)
        schedule.step()


def once(model: nn.Module) -> None:
    optimizer = adam(model)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, N_STEPS)
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


def in_a_loop(model: nn.Module) -> None:
    optimizer = adam(model)
    schedule = falling(optimizer)
    for _ in range(N_STEPS):
        update(model, optimizer)
        for _ in range(2):
            schedule.step()


def chained(model: nn.Module) -> None:
    optimizer = adam(model)
    warm = lr_scheduler.LinearLR(optimizer, total_iters=3)
    schedule = lr_scheduler.SequentialLR(optimizer, [warm, falling(optimizer)], [3])
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


def two_of_one_model(model: nn.Module) -> None:
    first, second = adam(model), adam(model, 0.001)
    schedules = falling(first), falling(second)
    for _ in range(N_STEPS):
        for optimizer, schedule in zip((first, second), schedules, strict=True):
            update(model, optimizer)
            schedule.step()


def used_later(model: nn.Module) -> None:
    first, second = adam(model), adam(model)
    schedule = falling(second)
    for step in range(N_STEPS):
        update(model, first if step < 6 else second)
        schedule.step()


def loaded_with_it(model: nn.Module) -> None:
    first, optimizer = adam(model), adam(model)
    before, schedule = falling(first), falling(optimizer)
    for _ in range(5):
        update(model, first)
        before.step()
    optimizer.load_state_dict(first.state_dict())
    schedule.load_state_dict(before.state_dict())
    for _ in range(N_STEPS):
        update(model, optimizer)
        schedule.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [once, in_a_loop, in_turns, chained, two_of_one_model, used_later, loaded_with_it, by_stages]
)
def test_one_in_step_is_not(program: Program, tmp_path: Path) -> None:
    assert told(program, tmp_path) == []


def told(program: Program, out: Path) -> list[tuple[str, str]]:
    return [(each.severity, each.title) for each in told_whole(program, out)]


def told_whole(program: Program, out: Path) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with contextlib.redirect_stderr(None), warnings.catch_warnings(), hypocenter.watch(out=str(out)):
        warnings.simplefilter("ignore")
        program(model)
    return [each for each in findings(out) if each.code == "HC214"]
