"""The law of determinism: a step that stops to repeat itself is told; one that never did is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from hypocenter.session.observers.repeats import LOOKS, LOOKS_OF_NOISE, Repeats

N_STEPS, AT = 16, 9
Size = Callable[[int], float]


def drawn() -> float:
    """From a source that nobody can put back."""
    return int.from_bytes(os.urandom(4), "big") / 2**32 - 0.5


class Noisy(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.inner, self.size, self.step = nn.Linear(8, 4), size, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (1.0 + self.size(self.step) * drawn())


def train(out: Path, size: Size) -> list[Finding]:
    torch.manual_seed(0)
    model = Noisy(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=str(out), audit="every=1"):
        for step in range(N_STEPS):
            model.step = step
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(16, 8)), torch.arange(16) % 4).backward()
            optimizer.step()
    return list(diagnose(open_run(out)).findings)


@pytest.mark.parametrize("size", [1.0, 1e-2])
def test_a_step_that_stops_to_repeat_itself_is_told(tmp_path: Path, size: float) -> None:
    found = train(tmp_path / "run", lambda step: size if step >= AT else 0.0)

    assert [(f.code, f.step, f.severity) for f in found if "loss of the run" in f.title][:1] == [("HC232", AT, "note")]
    assert [f.title for f in found if f.severity != "note"] == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 1.0, 1e-5])
def test_one_that_is_always_so_is_not_told(tmp_path: Path, size: float) -> None:
    assert train(tmp_path / "run", lambda step: size) == []


def test_the_floor_is_what_was_seen_before() -> None:
    repeats, usual = Repeats(), (1e-4, 2e-4, 0.0, 1e-4, 7e-4, 9e-4, 4e-3, 7e-4)
    assert len(usual) == LOOKS_OF_NOISE

    seen = [repeats.is_as_before(apart) for apart in (*usual, 1e-2, 2e-2, 1e-3)]

    assert seen == [True] * (LOOKS_OF_NOISE + 1) + [True, True]
    assert not repeats.is_as_before(0.1)
    assert repeats.row(7, 0.1, 0) is not None
    assert repeats.row(8, 0.1, 0) is None
    assert [repeats.is_as_before(apart) for apart in (3e-2, 9e-4)] == [False, True]


@pytest.mark.parametrize("usual", [0.0, 1e-7])
def test_where_all_repeated_to_rounding_few_looks_suffice(usual: float) -> None:
    repeats = Repeats()

    assert [repeats.is_as_before(apart) for apart in (*[usual] * LOOKS, 1e-3)] == [True] * LOOKS + [False]
