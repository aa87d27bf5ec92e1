"""An evaluation in the mode of training is told by the norms that it moves; calls that are meant are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

Between = Callable[[nn.Module, int], None]


def calls(model: nn.Module, n: int) -> None:
    with torch.no_grad():
        for _ in range(n):
            model(torch.randn(16, 6) + 1.0)


def in_training(model: nn.Module, step: int) -> None:
    if step % 8 == 7:
        calls(model, 4)


def with_gradients(model: nn.Module, step: int) -> None:
    for _ in range(4 * (step % 8 == 7)):
        model(torch.randn(16, 6) + 1.0)


def in_evaluation(model: nn.Module, step: int) -> None:
    model.eval()
    in_training(model, step)
    model.train()


def looks_once(model: nn.Module, step: int) -> None:
    calls(model, step % 8 == 7)


def each_time(model: nn.Module, step: int) -> None:
    calls(model, 4)


def now_and_then(model: nn.Module, step: int) -> None:
    calls(model, (0, 0, 3, 0, 0, 0, 0, 5, 2, 0, 4, 3)[step % 12])


def measures_anew(model: nn.Module, step: int) -> None:
    if step % 8 == 7:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()
        calls(model, 4)


def adapted_and_tested(model: nn.Module, step: int) -> None:
    """As a learner of tasks: each test takes a step of its own first."""
    for _ in range(4 * (step % 8 == 7)):
        torch.autograd.grad(model(torch.randn(16, 6)).square().mean(), list(model.parameters()))
        model(torch.randn(16, 6))


MEANT = (adapted_and_tested, in_evaluation, looks_once, each_time, now_and_then, measures_anew)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("between", "told"),
    [*((each, ["HC263"]) for each in (in_training, with_gradients)), *((each, []) for each in MEANT)],
)
def test_an_evaluation_in_the_mode_of_training_is_told(tmp_path: Path, between: Between, told: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(40):
            optimizer.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
            between(model, step)

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.code == "HC263"]
    assert [each.code for each in found] == told
    assert [(each.step, each.site) for each in found] == [(8, "1")] * len(told)


@pytest.mark.slow
def test_a_model_that_is_called_only_later_is_watched_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = nn.Linear(6, 6)
    later = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD([*first.parameters(), *later.parameters()], lr=0.01)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(60):
            optimizer.zero_grad()
            h = first(torch.randn(16, 6))
            (later(h) if step > 4 else h).square().mean().backward()
            optimizer.step()
            in_training(later, step if step > 30 else 0)

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.code == "HC263"]
    assert [each.step for each in found] == [32]
