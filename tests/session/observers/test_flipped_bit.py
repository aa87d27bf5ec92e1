"""A bit that flips between two updates is told, wherever it is in a small model; what programs do to weights is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.session.observers.between import jumped

Write = Callable[[torch.Tensor], object]


def flips(weight: torch.Tensor) -> None:
    weight.numpy().view(np.int32)[3, 5] ^= 1 << 27


def doubles_one(weight: torch.Tensor) -> None:
    weight[3, 5] *= 2.0


def prunes_one(weight: torch.Tensor) -> None:
    weight[3, 5] = 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("write", "told"), [(flips, ["HC231"]), (doubles_one, []), (prunes_one, [])])
def test_one_bit_is_told(tmp_path: Path, write: Write, told: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(16):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).sigmoid().mean().backward()
            optimizer.step()
            if step == 10:
                write(model[0].weight.data)

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.code == "HC231"]
    assert [each.code for each in found] == told
    assert [(each.step, each.param, each.cause) for each in found] == [(11, "0.weight", "hardware-fault")] * len(told)


def test_bits_of_the_exponent_and_of_the_sign_are_told_from_other_changes() -> None:
    was = np.linspace(0.1, 0.9, 8)

    def changed(factor: float, n: int = 1) -> str:
        now = was.copy()
        now[2 : 2 + n] *= factor
        return jumped(was, now)

    assert all(changed(2.0**order) and changed(2.0**-order) for order in (4, 8, 16, 64))
    assert changed(-1.0)
    assert not any((changed(2.0), changed(4.0), changed(2.0**5), changed(1.5), changed(0.0), changed(16.0, n=2)))
