"""What the DeepSpeed adapter reads: states of its scalers, real FP16 optimizers in this process, stand-ins."""

import contextlib
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hypocenter.tap.frameworks import deepspeed as adapter
from hypocenter.tap.frameworks.door import Door
from hypocenter.tap.scaled import PlainUpdate

DYNAMIC = {
    "init_scale": 256.0,
    "scale_window": 2,
    "min_scale": 1.0,
    "delayed_shift": 1,
    "consecutive_hysteresis": False,
}


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=3000))
def test_what_stands_for_a_gradient_has_its_largest_magnitude_and_no_larger_norm(values):
    grad = torch.tensor(values)
    largest, norm = grad.abs().max(), torch.linalg.vector_norm(grad)

    some = adapter._stand_in(torch.stack((largest, norm)), grad.numel())

    assert torch.equal(some.abs().max(), largest)
    assert some.numel() <= adapter.AT_MOST
    if grad.numel() <= adapter.AT_MOST:
        torch.testing.assert_close(torch.linalg.vector_norm(some), norm, rtol=1e-3, atol=1e-6)
    assert torch.linalg.vector_norm(some) <= norm * 1.001 + 1e-6


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_stands_for_a_bad_gradient_is_bad(bad):
    grad = torch.tensor([1.0, bad])

    some = adapter._stand_in(torch.stack((grad.abs().max(), torch.linalg.vector_norm(grad))), 2)

    assert not bool(torch.isfinite(some).all())
    assert bool(torch.isinf(some).any()) == (bad == float("inf"))


class Steps:
    """A door that notes what comes in."""

    def __init__(self):
        self.updates, self.said, self.seen = [], [], []
        self.door = Door(
            add_root=lambda module: None, scaled_step=self.entered, plain_step=self.entered, warn=self.said.append
        )

    @contextlib.contextmanager
    def entered(self, update):
        self.seen.append([(p, g.clone()) for p, g in update.gradients])
        yield
        self.updates.append(update)


@pytest.fixture
def steps():
    """The adapter attached to the real package."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed")
    found = Steps()
    undo = adapter.attach(found.door)
    yield found
    undo()


def fused(params, **options):
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer

    return FP16_Optimizer(torch.optim.AdamW(params), dynamic_loss_scale=True, dynamic_loss_args=DYNAMIC, **options)


def backward(optimizer, model, value):
    optimizer.backward(model(torch.full((1, 2), value, dtype=model.weight.dtype)).sum())


def test_the_fused_optimizer_is_seen_with_its_scale_and_its_skips(steps):
    model = nn.Linear(2, 1).half()
    optimizer = fused(model.parameters(), verbose=False)

    for value in (1.0, 6e4, 1.0):
        backward(optimizer, model, value)
        optimizer.step()

    first, _, third = steps.updates
    assert [u.state.scale for u in steps.updates] == [256.0, 256.0, 128.0]
    assert [any(u.found_inf.values()) for u in steps.updates] == [False, True, False]
    assert (first.state.kind, first.state.growth_interval, first.state.min_scale) == ("DynamicLossScaler", 2, 1.0)
    assert third.state.growth_tracker == 0
    assert [p is q for (p, _), q in zip(steps.seen[1], model.parameters(), strict=True)] == [True, True]
    (_, weight), (_, bias) = steps.seen[1]
    assert weight.isinf().all()
    assert bias.tolist() == [256.0]
    assert steps.said == []


def test_a_loss_that_the_optimizer_has_not_scaled_is_recorded_at_scale_one(steps):
    model = nn.Linear(2, 1).half()
    optimizer = fused(model.parameters(), verbose=False)

    model(torch.ones(1, 2).half()).sum().backward()
    optimizer.step()

    assert steps.updates[0].state.scale == 1.0
    assert ["does not multiply the loss" in text for text in steps.said] == [True]


def test_bf16_has_no_scaler(steps):
    model = nn.Linear(2, 1).bfloat16()
    optimizer = fused(model.parameters(), verbose=False, low_precision_dtype=torch.bfloat16)

    model(torch.full((1, 2), float("inf")).bfloat16()).sum().backward()
    optimizer.step()

    (update,) = steps.updates
    assert isinstance(update, PlainUpdate)
    assert update.was_skipped


def test_undoing_leaves_the_classes_as_they_were(steps):
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    inner = FP16_Optimizer.step
    undo = adapter.attach(Steps().door)
    assert FP16_Optimizer.step is not inner
    undo()

    assert FP16_Optimizer.step is inner
    assert DeepSpeedZeroOptimizer.step.__wrapped__ is not None


def test_an_optimizer_that_cannot_be_read_is_left_to_torch(steps):
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer

    class Odd:
        fused_adam_legacy = True

        def step_fused_adam(self):
            return "stepped"

    assert FP16_Optimizer.step(Odd()) == "stepped"
    assert steps.updates == []
    assert len(steps.said) == 1


def test_hysteresis_counts_what_is_still_forgiven():
    class Scaler:
        dynamic, cur_iter, last_overflow_iter, scale_window = True, 5, 1, 1000
        scale_factor, min_scale, cur_hysteresis = 2.0, 1.0, 2

    class Zero:
        custom_loss_scaler, loss_scale, loss_scaler = False, 64.0, Scaler()

    state = adapter._state(Zero())

    assert (state.hysteresis, state.growth_tracker, state.growth_interval, state.backoff_factor) == (1, 3, 1000, 0.5)
