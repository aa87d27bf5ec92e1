"""A merge of adapters that is not undone is told; one that is undone, and what is written on purpose, is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.a, self.b = nn.Parameter(0.3 * torch.randn(2, 16)), nn.Parameter(torch.zeros(16, 2))
        self.head, self.target = nn.Linear(16, 4), nn.Linear(16, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.base(x) + x @ self.a.T @ self.b.T
        return self.head(h) - self.target(h).detach()

    def merge(self, sign: float = 1.0) -> None:
        self.base.weight.data += sign * self.b.data @ self.a.data


Then = Callable[[Adapted], None]


def not_undone(model: Adapted) -> None:
    model.merge()


def undone(model: Adapted) -> None:
    model.merge()
    model.merge(-1.0)


def begun_anew(model: Adapted) -> None:
    model.merge()
    model.b.data.zero_()


def synchronised(model: Adapted) -> None:
    model.target.load_state_dict(model.head.state_dict())


def drawn_near(model: Adapted) -> None:
    for mine, theirs in zip(model.target.parameters(), model.head.parameters(), strict=True):
        mine.data.lerp_(theirs.data, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "told"),
    [(not_undone, ["HC262"]), *((each, []) for each in (undone, begun_anew, synchronised, drawn_near))],
)
def test_a_merge_that_is_not_undone_is_told(tmp_path: Path, then: Then, told: list[str]) -> None:
    torch.manual_seed(0)
    model = Adapted()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02)

    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(30):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            if step % 12 == 11:
                model.base(torch.ones(1, 16))  # by itself: one more model that is called
                then(model)

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.code == "HC262"]
    assert [each.code for each in found] == told
    assert [(each.step, each.param) for each in found] == [(12, "base.weight")] * len(told)


def test_a_mask_that_is_a_frozen_parameter_is_renewed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    for layer in layers:
        layer.register_parameter("mask", nn.Parameter(torch.ones(16, 16), requires_grad=False))
    optimizer = torch.optim.SGD([p for p in layers.parameters() if p.requires_grad], lr=0.02)

    class Pruned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = nn.functional.linear(x, layer.weight * layer.mask, layer.bias).relu()
            return x

    model = Pruned()
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(30):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            if step % 12 == 11:
                for layer in layers:
                    layer.mask.data = (layer.weight.abs() > 0.01 * step).float()

    assert not [each for each in diagnose(open_run(tmp_path / "run")).findings if each.code == "HC262"]
