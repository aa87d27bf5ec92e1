"""Of several adapters one is called in the place of all, as where closures of a loop share its variable."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

DEPTH = 3


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(DEPTH))
        self.adapters = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(DEPTH))
        self.blocks.requires_grad_(False)
        for i, block in enumerate(self.blocks):
            at = {"late": DEPTH - 1, "each": i, "routed": DEPTH - 1}[how]
            if how != "routed" or i == 0:
                block.register_forward_hook(lambda _, args, out, at=at: out + self.adapters[at](args[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def told(how: str, out: Path, n_micro: int = 1) -> list[tuple[str, int, str]]:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    with contextlib.redirect_stderr(None), hypocenter.watch(model, out=str(out), relations="never"):
        for _ in range(70):
            optimizer.zero_grad()
            for _ in range(n_micro):
                model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    return [(f.severity, f.step, f.site or "") for f in findings(out) if f.title.startswith("nothing ever used")]


@pytest.mark.parametrize("n_micro", [1, 2])
def test_one_that_is_called_for_all(n_micro: int, tmp_path: Path) -> None:
    assert told("late", tmp_path, n_micro) == [("warning", 0, "adapters.0.weight")]


def test_one_that_is_called_once_is_an_expert_like_others(tmp_path: Path) -> None:
    assert [severity for severity, *_ in told("routed", tmp_path)] == ["note"]


def test_each_is_called(tmp_path: Path) -> None:
    assert told("each", tmp_path) == []
