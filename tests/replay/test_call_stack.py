"""The lines that led to an operator, as a page shows them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.reader import open_run


class Inner(nn.Module):
    def forward(self, x: torch.Tensor, bad: bool) -> torch.Tensor:
        return helper(x, bad)


def helper(x: torch.Tensor, bad: bool) -> torch.Tensor:
    return torch.sqrt(x * 0) if bad else x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(3, 3), Inner()

    def forward(self, x: torch.Tensor, bad: bool, at: str) -> torch.Tensor:
        y = self.inner(self.linear(x), bad and at == "backward")
        return torch.log(y * 0) if bad and at == "forward" else y


@pytest.mark.parametrize(("at", "functions"), [("forward", ["train"]), ("backward", ["train", "forward", "forward"])])
def test_the_users_lines_are_there_the_outermost_first(tmp_path: Path, at: str, functions: list[str]) -> None:
    def train() -> None:
        model = Outer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3), step == 2, at).sum().backward()
            optimizer.step()

    with hypocenter.watch(out=tmp_path / "run"):
        train()

    (path,) = [path for _, path in open_run(tmp_path / "run").evidence_files()]
    origin = msgspec.json.decode(path.read_bytes(), type=Evidence).origin
    assert origin is not None
    assert origin.source is not None
    assert [source.function for source in origin.stack] == functions
    assert all(source.file == __file__ for source in origin.stack)
    assert origin.source not in origin.stack
