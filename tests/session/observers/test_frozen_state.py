"""Optimizer state that rounding freezes: the step counter, and second moments against exact arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hypocenter.config import Config
from hypocenter.detect.update_rows import (
    MOMENT_LOST,
    MOMENT_RATIO,
    MOMENTS_WRONG,
    SITE,
    STEP_COUNTER,
    STEP_MOVED,
    share,
)
from hypocenter.nouns import Place
from hypocenter.session.check import Check
from hypocenter.session.observer import Context, Update
from hypocenter.session.observers.frozen_state import FrozenState
from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Tape

torch.set_num_threads(1)


class Loop:
    """Adam on one weight, observed."""

    def __init__(self, dtype: torch.dtype, make=torch.optim.AdamW, **options) -> None:
        self.model = nn.Module()
        self.model.weight = nn.Parameter(torch.ones(64, dtype=dtype))
        self.optimizer = make([self.model.weight], lr=0.0, **options)
        names = NameMap()
        names.add_root(self.model)
        self.observer = FrozenState(
            Context(
                config=Config(), names=names, clock=Clock(), tape=Tape(0), replayer=None, rank=lambda: (0, 1),
                label=lambda p: names.param_name(p) or "?", warn=print, place=Place,
            )
        )  # fmt: skip
        self.step = 0

    def __call__(self, grad: torch.Tensor, *, skipped: bool = False) -> dict:
        self.model.weight.grad = grad.to(self.model.weight.dtype)
        update = Update(
            step=self.step, optimizer=self.optimizer, parameters=[self.model.weight], gradients=[], microbatches=[],
            check=Check(),
        )  # fmt: skip
        self.observer.before_update(update)
        if not skipped:
            self.optimizer.step()
        update.skipped = skipped
        self.observer.after_update(update)
        self.step += 1
        rows, self.observer.rows = self.observer.rows, []
        return {(r.site, r.port): r for r in rows}

    @property
    def state(self) -> dict:
        return self.optimizer.state[self.model.weight]


@pytest.mark.parametrize(("dtype", "last"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_counter_stops_at_the_last_number_that_has_a_successor(dtype, last):
    loop = Loop(torch.float32)
    loop(torch.ones(64))
    loop.state["step"] = torch.tensor(last - 2.0, dtype=dtype)

    rows = [loop(torch.ones(64)) for _ in range(4)]

    assert [r["weight", STEP_COUNTER].summary.sum for r in rows] == [last - 1, last, last, last]
    assert [r["weight", STEP_MOVED].summary.sum for r in rows] == [1, 1, 0, 0]
    assert rows[0]["weight", STEP_COUNTER].dtype == str(dtype)[6:]


def test_a_skipped_update_does_not_count():
    loop = Loop(torch.float32)
    loop(torch.ones(64))
    loop.state["step"] = loop.state["step"].bfloat16()

    assert loop(torch.ones(64), skipped=True) == {}


def test_float32_state_of_low_precision_weights_is_not_measured():
    loop = Loop(torch.float32)

    assert [loop(torch.ones(64)) for _ in range(3)] == [{}, {}, {}]


@pytest.mark.parametrize("beta2", [0.9, 0.95])
def test_second_moments_that_follow_are_right(beta2):
    loop, random = Loop(torch.bfloat16, betas=(0.9, beta2)), torch.Generator().manual_seed(0)

    rows = [loop(torch.randn(64, generator=random)) for _ in range(200)][-4 * 20 :]

    ratios = [r["weight", MOMENT_RATIO].summary.sum for r in rows if r]
    assert len(ratios) == 5
    assert all(0.5 < ratio < 2 for ratio in ratios)
    assert all(share(r[SITE, MOMENTS_WRONG]) == 0 for r in rows if r)


def test_second_moments_that_cannot_shrink_are_wrong():
    """beta2 = 0.999: they keep what large early gradients left, while exact ones fall to a hundredth."""
    loop, random = Loop(torch.bfloat16), torch.Generator().manual_seed(0)
    for _ in range(60):
        loop(torch.randn(64, generator=random))
    held = loop.state["exp_avg_sq"].clone()

    rows = [r for _ in range(3000) if (r := loop(0.01 * torch.randn(64, generator=random)))]

    assert torch.equal(loop.state["exp_avg_sq"], held)
    assert share(rows[-1]["weight", MOMENT_LOST]) == 1.0
    assert rows[-1]["weight", MOMENT_RATIO].summary.sum == pytest.approx(1 / 0.999**3000, rel=0.2)
    assert share(rows[-1][SITE, MOMENTS_WRONG]) == 1.0
    assert share(rows[20][SITE, MOMENTS_WRONG]) == 0.0


def test_decay_that_is_part_of_the_gradient_is_not_judged():
    loop = Loop(torch.bfloat16, torch.optim.Adam, weight_decay=0.1)

    assert [loop(torch.ones(64)) for _ in range(3)] == [{}, {}, {}]
