"""An adapter that is merged in an evaluation, and left out of training from then on, is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

AT, N_STEPS = 6, 16


def merged(model: Any) -> None:
    model.merge_adapter()


def taken_out_again(model: Any) -> None:
    model.merge_adapter()
    model.unmerge_adapter()


def frozen_with_it(model: Any) -> None:
    """The adapter is done: what is left of the model is trained."""
    model.merge_adapter()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" not in name and parameter.requires_grad)


@pytest.mark.parametrize(
    ("then", "told"), [(merged, [("warning", AT)]), (taken_out_again, []), (frozen_with_it, [("note", AT)])]
)
def test_an_adapter_that_stays_merged(then: Callable[[Any], None], told: list[tuple[str, int]], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    with hypocenter.watch(out=str(tmp_path)):
        for step in range(N_STEPS):
            if step == AT:
                model.eval()
                then(model)
                model.train()
            optimizer.zero_grad()
            (model(torch.randn(4, 6)) - 1).square().mean().backward()
            optimizer.step()

    found = [each for each in findings(tmp_path) if each.code == "HC233"]
    assert [(each.severity, each.step) for each in found] == told
