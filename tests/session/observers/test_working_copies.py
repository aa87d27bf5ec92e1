"""Weights whose copies an optimizer updates: what parts from its copy is told, and a gradient that is another's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.nouns import Finding
from tests.session.observers.test_laws import findings

N_STEPS, AT, N_PARTS = 14, 6, 2
Change = Callable[[int, list[Tensor]], list[Tensor]]


def as_it_is(step: int, parts: list[Tensor]) -> list[Tensor]:
    return parts


def swapped(first: int) -> Change:
    return lambda step, parts: parts[::-1] if step >= first else parts


def train(gathered: Change = as_it_is, given: Change = as_it_is, dtype: torch.dtype = torch.float32) -> None:
    """All weights flat, in parts of one size, each of which an optimizer of its own updates.

    Args:
        gathered: what becomes of the parts before they are put into the weights.
        given: what becomes of the parts of the gradient.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)).to(dtype)
    weights = list(model.parameters())
    flat = torch.cat([w.detach().float().reshape(-1) for w in weights])
    copies = [nn.Parameter(part.clone()) for part in flat.chunk(N_PARTS)]
    optimizer = torch.optim.AdamW(copies, lr=1e-2)
    for step in range(N_STEPS):
        x = torch.randn(32, 16)
        (model(x.to(dtype)).float() - x.cumsum(-1)).pow(2).mean().backward()
        gradient = torch.cat([w.grad.float().reshape(-1) for w in weights if w.grad is not None])
        for copy, part in zip(copies, given(step, list(gradient.chunk(N_PARTS))), strict=True):
            copy.grad = part.clone()
        optimizer.step()
        model.zero_grad()
        whole = torch.cat(gathered(step, [copy.detach() for copy in copies]))
        for weight, part in zip(weights, whole.split([w.numel() for w in weights]), strict=True):
            weight.data.copy_(part.view_as(weight))


def told(out: Path, **changes: Any) -> list[Finding]:
    with hypocenter.watch(out=out):
        train(**changes)
    return [f for f in findings(out) if f.severity in ("warning", "error")]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_that_are_brought_back_are_silent(dtype: torch.dtype, tmp_path: Path) -> None:
    assert told(tmp_path, dtype=dtype) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, AT])
def test_parts_that_are_put_together_in_another_order(first: int, tmp_path: Path) -> None:
    found = told(tmp_path, gathered=swapped(first))

    assert [(f.code, f.step, f.param) for f in found] == [("HC231", first + 1, "0.weight")]
    assert "is not what the optimizer's copy of it became" in found[0].title


@pytest.mark.parametrize("first", [0, AT])
def test_a_part_that_follows_the_gradient_of_another(first: int, tmp_path: Path) -> None:
    found = told(tmp_path, given=swapped(first))

    assert [(f.code, f.step, f.param) for f in found] == [("HC232", max(1, first), "0.weight")]
    assert "the optimizer's copy" in found[0].title


HABITS: dict[str, dict[str, Change]] = {
    "weights that are quantised": {"gathered": lambda _, parts: [part.sign() * part.abs().mean() for part in parts]},
    "gradients that are mostly noise": {"given": lambda _, parts: [part + torch.randn_like(part) for part in parts]},
    "gradients that are averages": {"given": lambda _, parts: [0.5 * part + 1e-3 for part in parts]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HABITS)
def test_what_is_always_so_may_be_meant(name: str, tmp_path: Path) -> None:
    assert told(tmp_path, **HABITS[name]) == []
