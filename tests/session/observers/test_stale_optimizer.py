"""An optimizer that holds none of what the model computes with is told; one with masters of the weights is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_STEPS = 12


def train(out: Path, make: Any, *, is_rebuilt: bool = False) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = make(model)
    for layer in (model[0], model[2]) if is_rebuilt else ():
        for name in ("weight", "bias"):
            setattr(layer, name, nn.Parameter(getattr(layer, name).detach().clone()))
    with hypocenter.watch(out=str(out)):
        for _ in range(N_STEPS):
            model.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    return list(diagnose(open_run(out)).findings)


class Masters(torch.optim.Optimizer):
    """It holds copies, which get their gradients in its step, and writes them back."""

    def __init__(self, model: nn.Module) -> None:
        self.own = list(model.parameters())
        super().__init__([nn.Parameter(p.detach().clone()) for p in self.own], {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for master, p in zip(self.param_groups[0]["params"], self.own, strict=True):
            if p.grad is not None:
                master.sub_(0.1 * p.grad)
                p.copy_(master)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def test_it_is_told(tmp_path: Path) -> None:
    found = train(tmp_path / "run", adamw, is_rebuilt=True)

    assert [(f.code, f.severity, f.param) for f in found] == [("HC233", "warning", "0.weight")]
    assert "for none of its own" in found[0].why[0]


def test_masters_of_the_weights_and_an_ordinary_optimizer_are_not(tmp_path: Path) -> None:
    assert train(tmp_path / "masters", Masters) == []
    assert train(tmp_path / "ordinary", adamw) == []
