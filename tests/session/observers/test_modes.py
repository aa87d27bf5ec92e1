"""A model that goes on to be trained in evaluation mode is named; who freezes norms or has nothing to switch is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, AT = 24, 12


def net(p: float = 0.1, norm: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Dropout(p), nn.Linear(8, 1))


class Functional(nn.Module):
    """Its own code asks for the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.dropout(self.up(x), 0.1, training=self.training))


def evaluated(model: nn.Module, step: int, *, is_put_back: bool) -> None:
    if step % 6 == 0:
        model.eval()
        with torch.no_grad():
            model(torch.randn(4, 6))
        if is_put_back or step < AT:
            model.train()


def frozen_norms(model: nn.Module, step: int) -> None:
    if step == AT:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()


def only_dropout_on(model: nn.Module, step: int) -> None:
    """As Monte-Carlo dropout leaves it, behind a body that is in evaluation mode on purpose."""
    frozen_norms(model, AT)
    if step >= AT:
        model.eval()
        model[2].train()


def in_turns(model: nn.Module, step: int) -> None:
    model.train(step % 2 == 0)


def told(model: nn.Module, before: Callable[[nn.Module, int], None], out: Path) -> list[tuple[str, str, int]]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for step in range(N_STEPS):
            before(model, step)
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    return [(f.code, f.severity, f.step) for f in findings(out)]


@pytest.mark.slow
@pytest.mark.parametrize("make", [net, Functional])
def test_what_is_not_put_back_after_an_evaluation_is_a_warning(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    found = told(make(), lambda model, step: evaluated(model, step, is_put_back=False), tmp_path)

    assert found == [("HC237", "warning", AT)]


def test_a_model_that_is_never_put_in_training_mode_is_a_note(tmp_path: Path) -> None:
    assert told(net().eval(), lambda *_: None, tmp_path) == [("HC237", "note", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["put back", "frozen norms", "only dropout on", "in turns", "nothing to switch"])
def test_what_is_meant_so_is_not_told(name: str, tmp_path: Path) -> None:
    model = net(0.0, norm=False) if name == "nothing to switch" else net()
    before = {
        "put back": lambda model, step: evaluated(model, step, is_put_back=True),
        "frozen norms": frozen_norms,
        "only dropout on": only_dropout_on,
        "in turns": in_turns,
        "nothing to switch": lambda model, step: evaluated(model, step, is_put_back=False),
    }[name]

    assert told(model, before, tmp_path) == []


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_body_that_is_frozen_beside_a_head_is_not_trained(is_frozen: bool, tmp_path: Path) -> None:
    body, head = net(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-3)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for step in range(N_STEPS):
            if step == AT:
                body.eval().requires_grad_(not is_frozen)
            optimizer.zero_grad()
            head(body(torch.randn(8, 6))).square().mean().backward()
            optimizer.step()

    assert [f.code for f in findings(tmp_path) if f.severity == "warning"] == ["HC237"] * (not is_frozen)
