"""A state that is a gradient is told; one that is a copy, or an old gradient that is gone, is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


class Momentum(torch.optim.Optimizer):
    def __init__(self, params: Any, *, clones: bool, name: str = "buffer") -> None:
        super().__init__(params, {"lr": 0.05})
        self.clones, self.name = clones, name

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if self.name not in state:
                state[self.name] = p.grad.clone() if self.clones else p.grad
            else:
                state[self.name].mul_(0.9).add_(p.grad)
            p.sub_(state[self.name], alpha=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "to_none", "told"),
    [
        ({"clones": False}, False, ["HC235"]),
        ({"clones": True}, False, []),
        ({"clones": False}, True, []),
        ({"clones": False, "name": "grad_sum"}, False, []),
    ],
)
def test_a_state_that_is_a_gradient_is_told(
    tmp_path: Path, options: dict[str, Any], to_none: bool, told: list[str]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = Momentum(model.parameters(), **options)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(8):
            optimizer.zero_grad(set_to_none=to_none)
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.severity != "note"]
    assert [each.code for each in found] == told
    assert [each.step for each in found] == [2] * len(told)
