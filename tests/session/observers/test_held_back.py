"""An optimizer that steps while accelerate holds updates back is told; a prepared one is not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from installed import skip_without
from torch import nn
from torch.nn import functional

import hypocenter
from tests.session.observers.test_laws import findings

skip_without("accelerate")


@pytest.fixture(autouse=True)
def _state_of_its_own() -> Any:
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


@pytest.mark.parametrize(
    ("how", "n"),
    [
        ({}, 1),
        ({"is_prepared": True}, 0),
        ({"n_micro": 1}, 0),
        ({"divides": False}, 0),
        ({"asks": True}, 0),
    ],
    ids=["not prepared", "prepared", "no accumulation", "losses of its own", "a loop that asks"],
)
def test_an_update_that_accelerate_would_hold_back(how: dict[str, Any], n: int, tmp_path: Path) -> None:
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        train(**how)

    told = [(f.step, f.severity, f.title) for f in findings(tmp_path) if f.code == "HC232"]
    assert told == [(0, "warning", "the gradient of every parameter is of one micro-batch, its loss divided by 4")] * n


def train(*, is_prepared: bool = False, n_micro: int = 4, divides: bool = True, asks: bool = False) -> None:
    """`asks`: an optimizer that is not prepared steps where accelerate says that gradients are complete."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=n_micro)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-3)
    model = accelerator.prepare(model)
    optimizer = accelerator.prepare(optimizer) if is_prepared else optimizer
    for _ in range(24):
        with accelerator.accumulate(model):
            x = torch.randn(8, 6)
            loss = functional.cross_entropy(model(x), x[:, :3].argmax(1))
            if divides:
                accelerator.backward(loss)
            else:
                loss.backward()
            if not asks or accelerator.sync_gradients:
                optimizer.step()
                optimizer.zero_grad()
