"""Scalers of other classes: one scaled update per step, whether they derive from torch's or only look like it."""

import contextlib

import pytest
import torch
from torch import nn

from hypocenter.tap.foreign_scalers import ForeignScalers, looks_like_scaler, state_of
from hypocenter.tap.updates import UpdateTap


class InHouse:
    """A scaler of nobody's, with torch-like names."""

    def __init__(self, scale=8.0):
        self._scale = scale
        self._growth_interval = 100

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.div_(self._scale)

    def get_scale(self):
        return self._scale

    def step(self, optimizer):
        self.unscale_(optimizer)
        if all(bool(torch.isfinite(p.grad).all()) for group in optimizer.param_groups for p in group["params"]):
            optimizer.step()

    def update(self):
        pass


class Derived(torch.amp.GradScaler):
    """As torch_npu does: its own step around torch's."""

    def step(self, optimizer, *args, **kwargs):
        return super().step(optimizer, *args, **kwargs)


class Rewritten(torch.amp.GradScaler):
    """As apex and older torch_npu do: its own step in place of torch's."""

    def step(self, optimizer):
        self.unscale_(optimizer)
        state = self._per_optimizer_states[id(optimizer)]
        if not sum(v.item() for v in state["found_inf_per_device"].values()):
            optimizer.step()


class Listener:
    paused = False

    def __init__(self):
        self.calls = []
        self.updates = []

    def before_scaled_step(self, update):
        self.calls.append("scaled")
        self.updates.append(update)

    def before_update(self, optimizer):
        self.calls.append("plain")

    def __getattr__(self, name):
        return lambda *args: None


@contextlib.contextmanager
def watching(scaler=None):
    listener = Listener()
    tap = UpdateTap(listener)
    foreign = ForeignScalers(tap.scaled_step)
    undo = [tap.attach(), foreign.attach()]
    if scaler is not None:
        foreign.watch(scaler)
    try:
        yield listener
    finally:
        for each in reversed(undo):
            each()


def train(scaler, values=(1.0, 1.0)):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for value in values:
        optimizer.zero_grad()
        scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("kind", [Derived, Rewritten, torch.amp.GradScaler])
def test_each_step_of_a_torch_like_scaler_is_one_scaled_update(kind):
    with watching() as listener:
        train(kind("cpu", init_scale=4.0), values=(1.0, float("inf"), 1.0))

    assert listener.calls == ["scaled"] * 3


def test_a_scaler_that_is_given_is_seen_from_its_first_step_skipped_or_not():
    scaler = InHouse()

    with watching(scaler) as listener:
        train(scaler, values=(float("inf"), 1.0))

    assert listener.calls == ["scaled", "scaled"]
    assert [u.state.scale for u in listener.updates] == [8.0, 8.0]
    assert not listener.updates[0].is_unscaled


def test_a_scaler_that_nobody_gave_is_seen_after_its_first_update():
    with watching() as listener:
        train(InHouse(), values=(1.0, float("inf"), 1.0))

    assert listener.calls == ["plain", "scaled", "scaled"]


def test_what_only_has_a_step_is_no_scaler():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    assert not looks_like_scaler(optimizer)
    assert not looks_like_scaler(torch.optim.lr_scheduler.ConstantLR(optimizer))
    assert not looks_like_scaler(object())


def test_undoing_leaves_the_class_as_it_was():
    before, scale = InHouse.__dict__["step"], torch.amp.GradScaler.scale

    with watching(InHouse()):
        assert InHouse.__dict__["step"] is not before

    assert InHouse.__dict__["step"] is before
    assert torch.amp.GradScaler.scale is scale


def test_of_the_state_what_is_missing_is_none():
    state = state_of(InHouse(2.0))

    assert (state.kind, state.scale, state.growth_interval) == ("InHouse", 2.0, 100)
    assert (state.growth_tracker, state.backoff_factor, state.init_scale) == (None, None, None)


def test_a_step_with_something_that_is_no_optimizer_is_the_users_own_affair():
    class Odd(InHouse):
        def step(self, optimizer):
            return optimizer + 1

    scaler = Odd()

    with watching(scaler) as listener:
        assert scaler.step(1) == 2

    assert listener.calls == []
