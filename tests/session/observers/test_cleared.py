"""Who steps at each micro-batch of an accumulation is told so; who forgets to set gradients to zero is told that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run


def trained(out: Path, is_last: Callable[[int], bool], *, to_none: bool = True, clip: bool = False) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(out=str(out)):
        for step in range(24):
            model(torch.randn(8, 6)).square().mean().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if is_last(step):
                optimizer.zero_grad(set_to_none=to_none)
    return [each for each in diagnose(open_run(out)).findings if each.code == "HC232"]


@pytest.mark.parametrize(("to_none", "clip"), [(True, False), (False, False), (False, True)])
def test_an_optimizer_that_steps_at_each_micro_batch(tmp_path: Path, to_none: bool, clip: bool) -> None:
    (found,) = trained(tmp_path, lambda step: step % 4 == 3, to_none=to_none, clip=clip)

    assert found.title == "the optimizer steps 4 times in each accumulation of gradients"
    assert (found.step, found.severity, found.confidence) == (1, "warning", "likely")
    assert found.remedy is not None
    assert found.remedy.action == "step-with-zero-grad"


@pytest.mark.parametrize("is_last", [lambda step: False, lambda step: step in (3, 5, 11, 13)])
def test_gradients_that_are_zeroed_never_or_now_and_then(tmp_path: Path, is_last: Callable[[int], bool]) -> None:
    (found,) = trained(tmp_path, is_last)

    assert found.title.endswith("still holds that of the step before")
    assert found.remedy is not None
    assert found.remedy.action == "zero-grad"


def test_gradients_that_are_always_zeroed(tmp_path: Path) -> None:
    assert trained(tmp_path, lambda step: True) == []
