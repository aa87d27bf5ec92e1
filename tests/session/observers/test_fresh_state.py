"""An optimizer that is made anew again and again is named; a new stage, another rate or a load is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as pruning

import hypocenter
from tests.session.observers.test_laws import findings

Made = Callable[[nn.Module, int], torch.optim.Optimizer]


def adam(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr)


def told(
    made: Made, every: int, out: Path, n_steps: int = 9, between: Callable[[nn.Module], None] = id
) -> list[tuple[str, int | None]]:
    """Codes and steps of what is found."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for step in range(n_steps):
            if step % every == 0:
                between(model)
                optimizer = made(model, step)
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    return [(each.code, each.step) for each in findings(out)]


def load(model: nn.Module) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})


def prune(model: nn.Module) -> None:
    pruning.l1_unstructured(model[2], "weight", 0.2)  # type: ignore[index]


def freeze(model: nn.Module) -> None:
    bias = model[2].bias  # type: ignore[index]
    bias.requires_grad_(not bias.requires_grad)


@pytest.mark.parametrize("every", [1, 3])
def test_state_that_is_thrown_away_is_told_once(every: int, tmp_path: Path) -> None:
    assert told(lambda model, step: adam(model), every, tmp_path) == [("HC259", 2 * every)]


def test_another_model_that_comes_and_goes_is_no_new_stage(tmp_path: Path) -> None:
    def use_another(model: nn.Module) -> None:
        nn.Linear(6, 2)(torch.zeros(1, 6))

    assert told(lambda model, step: adam(model), 1, tmp_path, between=use_another) == [("HC259", 2)]


@pytest.mark.parametrize(
    ("made", "every", "between"),
    [
        (lambda model, step: adam(model), 5, id),
        (lambda model, step: adam(model, 0.01 / (1 + step)), 3, id),
        (lambda model, step: torch.optim.SGD(model.parameters(), 0.01), 3, id),
        (lambda model, step: adam(model), 3, load),
        (lambda model, step: adam(model), 3, prune),
        (lambda model, step: adam(model), 3, freeze),
        (lambda model, step: torch.optim.Adam(model.parameters(), 0.01, betas=(0.8 + step / 100, 0.99)), 3, id),
    ],
    ids=[
        "a second stage",
        "another rate",
        "nothing to lose",
        "rounds that load",
        "rounds of pruning",
        "freezing in turn",
        "other options",
    ],
)
def test_what_loses_nothing_or_means_to_is_not(
    made: Made, every: int, between: Callable[[nn.Module], None], tmp_path: Path
) -> None:
    assert told(made, every, tmp_path, between=between) == []
