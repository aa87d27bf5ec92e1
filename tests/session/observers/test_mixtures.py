"""An average that goes another way than to its weights is named; whatever else moves in a copy of them is not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.nouns import Finding
from tests.session.observers.test_laws import findings

N_STEPS = 14
Move = Callable[[Tensor, Tensor], Tensor]
Titles = list[tuple[str, str, str]]


class Gated(nn.Module):
    """Two layers of one shape."""

    def __init__(self, *, is_flipped: bool = False) -> None:
        super().__init__()
        for name in ("value", "gate") if is_flipped else ("gate", "value"):
            setattr(self, name, nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.gate(x)) * self.value(x))


def lerp(average: Tensor, weight: Tensor) -> Tensor:
    return average + 0.1 * (weight - average)


def away(average: Tensor, weight: Tensor) -> Tensor:
    return average + 0.1 * (average - weight)


def told(
    made: Callable[[nn.Module], Any],
    follow: Callable[[Any, nn.Module, int], None],
    out: Path,
    lr: float = 0.05,
    n_steps: int = N_STEPS,
) -> list[Finding]:
    torch.manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        model = Gated()
        average, optimizer = made(model), torch.optim.SGD(model.parameters(), lr)
        for step in range(n_steps):
            optimizer.zero_grad()
            x = torch.randn(16, 8)
            nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
            with torch.no_grad():
                follow(average, model, step)
    return [each for each in findings(out) if each.code == "HC261"]


def pairwise(move: Move, *, every: int = 1, but: str = "") -> Callable[[Any, nn.Module, int], None]:
    def follow(average: nn.Module, model: nn.Module, step: int) -> None:
        names = [name for name, _ in model.named_parameters()]
        for name, mine, weight in zip(names, average.parameters(), model.parameters(), strict=True):
            if step % every == 0 and name != but:
                mine.copy_(move(mine, weight))
        average(torch.ones(1, 8))

    return follow


def flipped(model: nn.Module) -> nn.Module:
    other = Gated(is_flipped=True).requires_grad_(False)
    other.load_state_dict(model.state_dict())
    return other


def by_name(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def follow_dict(move: Move) -> Callable[[Any, nn.Module, int], None]:
    def follow(average: dict[str, Tensor], model: nn.Module, _: int) -> None:
        for name, weight in model.named_parameters():
            average[name] = move(average[name], weight.detach())

    return follow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "follow", "said", "severity"),
    [
        (copy.deepcopy, pairwise(away), "moves away from the weights", "warning"),
        (by_name, follow_dict(away), "moves away from the weights", "warning"),
        (flipped, pairwise(lerp), "in the place of", "warning"),
        (lambda model: Gated().requires_grad_(False), pairwise(lerp), "begins at other weights", "warning"),
        (copy.deepcopy, pairwise(lerp, but="value.weight"), "leaves out value.weight", "note"),
    ],
    ids=["a wrong sign", "in a dict", "another order", "never begun", "one left out"],
)
def test_what_is_no_average_is_told_once(
    made: Callable[[nn.Module], Any], follow: Callable[[Any, nn.Module, int], None], said: str, severity: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    [finding] = told(made, follow, tmp_path)

    assert (said in finding.title, finding.severity) == (True, severity)


def begun_late(average: dict[str, Tensor], model: nn.Module, step: int) -> None:
    if step == 8:
        average.update(by_name(model))
    elif average:
        follow_dict(away)(average, model, step)


@pytest.mark.slow
def test_a_dict_that_is_made_while_it_trains_is_found_later(tmp_path: Path) -> None:
    [finding] = told(lambda _: {}, begun_late, tmp_path, n_steps=24)

    assert "moves away from the weights" in finding.title


def untouched(average: nn.Module, model: nn.Module, step: int) -> None:
    average(torch.ones(1, 8))


def trained_too(average: nn.Module, model: nn.Module, step: int) -> None:
    for mine in average.parameters():
        mine.add_(torch.randn_like(mine), alpha=0.01)
    average(torch.ones(1, 8))


def wobbling(average: nn.Module, model: nn.Module, step: int) -> None:
    for mine, weight in zip(average.parameters(), model.parameters(), strict=True):
        mine.copy_(mine.lerp(weight, 0.1) + 1e-3 * torch.randn_like(mine))
    average(torch.ones(1, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "follow"),
    [
        (copy.deepcopy, pairwise(lerp)),
        (copy.deepcopy, pairwise(lerp, every=4)),
        (copy.deepcopy, pairwise(lambda _, weight: weight)),
        (lambda model: Gated().requires_grad_(False), pairwise(lambda _, weight: weight, every=4)),
        (by_name, follow_dict(lerp)),
        (by_name, follow_dict(lambda _, weight: weight.clone())),
        (copy.deepcopy, untouched),
        (copy.deepcopy, trained_too),
        (copy.deepcopy, wobbling),
        (torch.optim.swa_utils.AveragedModel, lambda average, model, _: average.update_parameters(model)),
    ],
    ids=["an EMA", "every fourth step", "a copy", "a target that is set", "a dict", "the last weights", "a reference",
         "another model", "with noise", "SWA"],
)  # fmt: skip
def test_what_follows_or_is_something_else_is_not(
    made: Callable[[nn.Module], Any], follow: Callable[[Any, nn.Module, int], None], tmp_path: Path
) -> None:
    assert told(made, follow, tmp_path) == []


@pytest.mark.night
def test_one_that_forgets_is_told_and_a_decay_that_grows_or_a_copy_is_not(tmp_path: Path) -> None:
    def moves(name: str, a: Callable[[int], float]) -> list[str]:
        def follow(average: nn.Module, model: nn.Module, step: int) -> None:
            for mine, weight in zip(average.parameters(), model.parameters(), strict=True):
                mine.copy_(weight if a(step) == 1.0 else mine + a(step) * (weight - mine))

        return [each.title for each in told(copy.deepcopy, follow, tmp_path / name, n_steps=40)]

    assert moves("forgets", lambda _: 0.99) == ["the average Gated is hardly one"]
    assert moves("grows", lambda step: 1.0 - (1.0 + step) / (10.0 + step)) == []
    assert moves("copies", lambda _: 1.0) == []
    assert moves("half", lambda _: 0.5) == []
