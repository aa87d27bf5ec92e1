"""State that a resume puts into the wrong place is told; what comes back as it was, or is of another time, is not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

Saved = dict[str, Any]


def make(*, is_reversed: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    layers = list(model)[::-1] if is_reversed else list(model)
    return model, torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(6):
        optimizer.zero_grad()
        x = torch.randn(8, 6)
        (model(x) - x).square().mean().backward()
        optimizer.step()


def as_it_was(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = make()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer


def exchanged(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = as_it_was(saved)
    for state in optimizer.state.values():
        state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg"].abs()
    return model, optimizer


def in_another_order(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = make(is_reversed=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer


def of_other_weights(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = exchanged(saved)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    return model, optimizer


def of_another_rank(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = as_it_was(saved)
    for state in optimizer.state.values():
        state["exp_avg"] = torch.randn_like(state["exp_avg"]) * state["exp_avg"].std()
        state["exp_avg_sq"] = torch.rand_like(state["exp_avg_sq"]) * state["exp_avg_sq"].mean()
    return model, optimizer


def in_bfloat16(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = as_it_was(saved)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].bfloat16().float()
    return model, optimizer


def anew(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = as_it_was(saved)
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].fill_(1e-8)
    return model, optimizer


def beginning_at_the_weights(saved: Saved) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = as_it_was(saved)
    for parameter, state in optimizer.state.items():  # as the slow weights of Lookahead do
        state["exp_avg"], state["exp_avg_sq"] = parameter.detach().clone(), parameter.detach().clone()
    return model, optimizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resume", "told"),
    [
        *((exchanged, ["HC259"]), (in_another_order, ["HC259"]), (of_another_rank, ["HC259"])),
        *((as_it_was, []), (of_other_weights, []), (in_bfloat16, []), (anew, []), (beginning_at_the_weights, [])),
    ],
)
def test_state_in_the_wrong_place_is_told(
    tmp_path: Path, resume: Callable[[Saved], tuple[nn.Module, torch.optim.Optimizer]], told: list[str]
) -> None:
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path / "run")):
        model, optimizer = make()
        train(model, optimizer)
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        model, optimizer = resume(saved)
        train(model, optimizer)

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.code == "HC259"]
    assert [each.code for each in found] == told
    assert [each.step for each in found] == [6] * len(told)
