"""An optimizer whose gradients have gone to parameters that nobody holds is told of; one that only pauses is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_BEFORE, N_AFTER = 7, 12


class Adapted(nn.Module):
    """A frozen base with two adapters, one of which is used."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.first, self.second = (nn.Linear(6, 6) for _ in range(3))
        self.base.requires_grad_(False)
        self.active = "first"

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + getattr(self, self.active)(x)


Phase = Callable[[Adapted, torch.optim.Optimizer], None]


def step(model: Adapted, optimizer: torch.optim.Optimizer, used: nn.Module | None = None) -> None:
    optimizer.zero_grad()
    (used or model)(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()


def second(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    model.active = "second"
    for _ in range(N_AFTER):
        step(model, optimizer)


def second_with_zeros(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    model.active = "second"
    for _ in range(N_AFTER):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


def found(out: Path, after: Phase, *, before: Phase = lambda model, optimizer: None) -> list[Finding]:
    torch.manual_seed(0)
    model = Adapted()
    optimizer = torch.optim.AdamW(model.first.parameters(), lr=0.01)
    with hypocenter.watch(out=str(out)):
        before(model, optimizer)
        for _ in range(N_BEFORE):
            step(model, optimizer)
        after(model, optimizer)
    findings = diagnose(open_run(out)).findings
    return [each for each in findings if each.code == "HC233" and each.severity != "note"]


@pytest.mark.parametrize("after", [second, second_with_zeros])
def test_it_is_told_with_the_step_and_the_optimizer(tmp_path: Path, after: Phase) -> None:
    (told,) = found(tmp_path, after)

    assert (told.severity, told.step, told.param) == ("warning", N_BEFORE, "second.weight")
    assert "AdamW, which steps, has no gradient any more of what it holds: first.bias" in told.why[0]


def with_its_own(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    second(model, torch.optim.AdamW(model.second.parameters(), lr=0.01))


def in_turn(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    """The other has an optimizer, and this one is stepped without a backward of its own."""
    other = torch.optim.AdamW(model.second.parameters(), lr=0.01)
    model.active = "second"
    for _ in range(N_AFTER):
        step(model, other)
        optimizer.zero_grad()
        optimizer.step()


def without_any(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(N_AFTER):
        optimizer.zero_grad()
        optimizer.step()


def frozen(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    """A gradient for what goes in alone."""
    model.requires_grad_(False)
    for _ in range(N_AFTER):
        optimizer.zero_grad()
        model(torch.randn(4, 6, requires_grad=True)).square().mean().backward()
        optimizer.step()


def by_hand(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    model.active = "second"
    for _ in range(N_AFTER):
        step(model, optimizer)
        with torch.no_grad():
            for p in model.second.parameters():
                p -= 0.01 * p.grad  # type: ignore[operator]
                p.grad = None


def left_over(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    """One backward for the other, to measure something."""
    model.active = "second"
    step(model, optimizer)
    model.requires_grad_(False)
    frozen(model, optimizer)


def a_few(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(N_AFTER):
        model.active = "first" if model.active == "second" else "second"
        step(model, optimizer)


@pytest.mark.parametrize("after", [with_its_own, in_turn, without_any, frozen, by_hand, left_over, a_few])
def test_what_pauses_or_is_held_is_not(tmp_path: Path, after: Phase) -> None:
    assert found(tmp_path, after) == []


def test_what_had_a_gradient_beside_it_before_is_left_out_on_purpose(tmp_path: Path) -> None:
    """An adapter that a program never trains, as in textual inversion the model, while the other is not used."""

    def both(model: Adapted, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(2):
            step(model, optimizer, lambda x: model.first(x) + model.second(x))  # type: ignore[arg-type]

    assert found(tmp_path, second, before=both) == []
