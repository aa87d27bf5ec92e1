"""Which class of rule an optimizer follows, by its steps alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hypocenter.optimizers.fitted import FAR, NEAR, SETTLED, Fits, Look, Moved

N_PARAMETERS, N_ELEMENTS = 6, 64
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.numpy().copy() for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == (N_ELEMENTS,)}


def followed(make: Make, n_steps: int, spoil: Callable[[int, list[Any]], None] = lambda *_: None) -> list[Any]:
    """What is said of each step of an optimizer in float64."""
    random = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(N_ELEMENTS, generator=random).double()) for _ in range(N_PARAMETERS)]
    optimizer, fits, said = make(weights), Fits(), []
    for step in range(n_steps):
        before = []
        for weight in weights:
            weight.grad = torch.randn(N_ELEMENTS, generator=random).double()
            before.append((weight.detach().numpy().copy(), weight.grad.numpy().copy(), arrays(optimizer.state[weight])))
        optimizer.step()
        with torch.no_grad():
            spoil(step, weights)
        moved = [
            Moved(value=value, gradient=grad, state=state, after=w.detach().numpy().copy(),
                  new=arrays(optimizer.state[w]), eps=2.0**-53)
            for w, (value, grad, state) in zip(weights, before, strict=True)
        ]  # fmt: skip
        said.append(fits.look(moved, [0.9, 0.99], 1e-8))
    return said


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
            p.mul_(1 - 1e-3).sub_(1e-2 * (0.9 * mean + 0.1 * p.grad).sign())
            mean.mul_(0.99).add_(p.grad, alpha=0.01)


RULES: dict[str, tuple[Make, str]] = {
    "sgd": (lambda ps: torch.optim.SGD(ps, lr=0.1, weight_decay=0.1), "a*g + b*w"),
    "momentum": (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), "a*momentum_buffer"),
    "nesterov": (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True), "a*momentum_buffer + b*g"),
    "adamw": (lambda ps: torch.optim.AdamW(ps), "a*exp_avg/root(exp_avg_sq) + b*w"),
    "nadam": (lambda ps: torch.optim.NAdam(ps), "a*exp_avg/root(exp_avg_sq) + b*g/root(exp_avg_sq)"),
    "lion": (Lion, "a*sign(0.9*exp_avg+g) + b*w"),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_class_of_a_rule_is_told_by_its_steps(rule: str) -> None:
    make, form = RULES[rule]

    said = followed(make, 8)

    assert all(looks == {} for looks in said[:SETTLED])
    for looks in said[SETTLED:]:
        assert str(looks["value"].form) == form
        assert all(part <= NEAR for look in looks.values() for part in look.apart)


@pytest.mark.parametrize("rule", RULES)
def test_a_parameter_that_leaves_it_is_told_from_the_others(rule: str) -> None:
    def spoil(step: int, weights: list[Any]) -> None:
        if step == 6:
            weights[2][:8] = 0.0

    look: Look = followed(RULES[rule][0], 7, spoil)[6]["value"]

    assert [i for i, part in enumerate(look.apart) if part > FAR] == [2]
    assert np.isnan(look.factor[2])


class Orthogonal(torch.optim.Optimizer):
    """Its step is no function of each element by itself."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            u, _, v = torch.linalg.svd(p.grad.view(8, 8))
            p.sub_(0.1 * (u @ v).view(-1))


def test_of_a_rule_of_another_class_nothing_is_said() -> None:
    assert all(looks == {} for looks in followed(lambda ps: Orthogonal(ps, {}), 10))


def test_when_most_leave_it_at_once_it_is_another_rule() -> None:
    def spoil(step: int, weights: list[Any]) -> None:
        if step >= 6:
            for weight in weights[:3]:
                weight.mul_(0.5)

    said = followed(RULES["momentum"][0], 8, spoil)

    assert "value" in said[5]
    assert "value" not in said[6]
