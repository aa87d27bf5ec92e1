"""An expert that gets nothing is told in a note; what has no like, is used later or is frozen is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_EXPERTS, IDLE, WIDTH = 3, 1, 6


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(N_EXPERTS))
        self.spare = nn.Linear(WIDTH, WIDTH)  # of another kind, for later

    def forward(self, x: Tensor, idle: int) -> Tensor:
        to = x[:, 0].argsort() % N_EXPERTS
        parts = [self.experts[i](x) * (to == i)[:, None] for i in range(N_EXPERTS) if i != idle]
        return x + sum(parts)


def train(out: Path, *, first: int, frozen: bool = False, n_steps: int = 70) -> list[Finding]:
    """Before step `first` nothing is sent to one expert."""
    torch.manual_seed(0)
    model = Experts()
    model.experts[IDLE].requires_grad_(not frozen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(out=str(out), audit="never"):
        for step in range(n_steps):
            x = torch.randn(12, WIDTH)
            optimizer.zero_grad()
            functional.mse_loss(model(x, IDLE if step < first else -1), 2 * x).backward()
            optimizer.step()
    return [each for each in diagnose(open_run(out)).findings if "nothing ever used" in each.title]


def test_an_expert_that_gets_nothing_is_a_note(tmp_path: Path) -> None:
    found = train(tmp_path / "run", first=100)

    assert [(f.code, f.severity, f.param, f.step) for f in found] == [("HC233", "note", "experts.1.weight", 63)]
    assert "experts." in found[0].why[0]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "frozen"), [(0, False), (50, False), (100, True)])
def test_what_is_used_later_or_is_not_trained_is_left_alone(tmp_path: Path, first: int, frozen: bool) -> None:
    assert train(tmp_path / "run", first=first, frozen=frozen) == []
