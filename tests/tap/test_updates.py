"""Backward, clipping, scaling and steps reach the listener, once each and in order."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hypocenter.tap.updates import UpdateTap


class Listener:
    paused = False

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append(name)


def watched(train):
    listener = Listener()
    undo = UpdateTap(listener).attach()
    try:
        train()
    finally:
        undo()
    return listener.calls


def parts():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 4)


def test_a_plain_step_with_clipping():
    model, optimizer, x = parts()

    def train():
        model(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert watched(train) == ["before_backward", "after_backward", "before_clip", "before_update", "after_update"]


def test_a_closure_is_checked_after_it_ran_and_before_the_update():
    model, optimizer, x = parts()
    order = []

    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        order.append("closure")
        return loss

    calls = watched(lambda: optimizer.step(closure))

    assert order == ["closure"]
    assert calls == ["before_backward", "after_backward", "before_update", "after_update"]


def test_lbfgs_calls_its_closure_many_times():
    model, _, x = parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss

    calls = watched(lambda: optimizer.step(closure))

    later = ["before_evaluation", "before_backward", "after_backward", "after_evaluation"]
    assert calls[:3] == ["before_backward", "after_backward", "before_update"]
    assert calls[3:7] == later
    assert calls.count("before_update") == calls.count("after_update") == 1
    assert calls.count("after_update") == 1


def test_a_scaler_reports_scaled_steps_only():
    model, optimizer, x = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def train():
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    assert watched(train) == ["before_backward", "after_backward", "before_scaled_step", "after_scaled_step"]


def test_reentrant_checkpointings_inner_backward_is_not_a_micro_batch():
    model, _, x = parts()
    x.requires_grad_()

    calls = watched(lambda: checkpoint(model, x, use_reentrant=True).sum().backward())

    assert calls == ["before_backward", "after_backward"]


def test_a_generator_of_parameters_is_still_clipped():
    model, _, x = parts()
    model(x).sum().backward()

    def train():
        norm = torch.nn.utils.clip_grad_norm_((p for p in model.parameters()), 1e-3)
        assert float(norm) > 1e-3

    watched(train)
    assert float(torch.linalg.vector_norm(model.weight.grad)) <= 1.1e-3


def test_somebody_elses_patch_on_top_of_ours_is_left_alone():
    listener = Listener()
    original = torch.nn.utils.clip_grad_norm_
    undo = UpdateTap(listener).attach()
    ours = torch.nn.utils.clip_grad_norm_
    torch.nn.utils.clip_grad_norm_ = theirs = lambda *a, **k: ours(*a, **k)

    undo()

    assert torch.nn.utils.clip_grad_norm_ is theirs
    torch.nn.utils.clip_grad_norm_ = original


def scaled_parts(**options):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0), torch.randn(2, 4)


def test_unscaling_before_the_step_is_reported_and_the_one_inside_it_is_not():
    model, optimizer, scaler, x = scaled_parts()

    def train():
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)

    assert [call for call in watched(train) if "backward" not in call] == [
        "before_unscale", "after_unscale", "before_scaled_step", "after_scaled_step", "before_scaled_step",
        "after_scaled_step",
    ]  # fmt: skip


class Updates(Listener):
    """Keeps the scaled updates."""

    def __init__(self):
        super().__init__()
        self.before, self.after, self.unscaled = [], [], []

    def before_scaled_step(self, update):
        self.before.append((update.is_unscaled, dict(update.found_inf)))

    def after_scaled_step(self, update):
        self.after.append(dict(update.found_inf))

    def after_unscale(self, unscaling):
        self.unscaled.append(unscaling.has_overflowed)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("value", [1.0, float("inf")])
def test_what_the_scaler_found_is_known_after_the_step_and_after_unscaling(fused, unscale, value):
    model, optimizer, scaler, x = scaled_parts(fused=fused)
    listener = Updates()
    undo = UpdateTap(listener).attach()

    scaler.scale(model(x).sum() * value).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    undo()

    is_bad = value != 1.0
    assert listener.after == [{"cpu": is_bad}]
    assert listener.before == [(unscale, {"cpu": is_bad} if unscale else {})]
    assert listener.unscaled == ([is_bad] if unscale else [])


class OwnUnscale(torch.amp.GradScaler):
    """As FSDP's: takes the scale out in its own way."""

    def unscale_(self, optimizer):
        super().unscale_(optimizer)


def test_a_subclass_with_an_unscale_of_its_own_is_reported_once():
    model, optimizer, _, x = scaled_parts()
    scaler = OwnUnscale("cpu", init_scale=2.0)

    def train():
        for _ in range(2):
            scaler.scale(model(x).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    original = OwnUnscale.unscale_
    calls = watched(train)

    assert [calls.count(name) for name in ("before_unscale", "after_unscale", "before_scaled_step")] == [2, 2, 2]
    assert OwnUnscale.unscale_ is original


def test_nothing_is_asked_of_a_scaler_that_would_change_it():
    model, optimizer, scaler, x = scaled_parts()
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)

    def train():
        scaler.scale(model(x).sum()).backward()
        with contextlib.suppress(RuntimeError):
            scaler.step(other, closure=lambda: None)
        scaler.step(optimizer)

    watched(train)

    assert list(scaler._per_optimizer_states) == [id(optimizer)]


def test_a_scaler_that_cannot_be_read_steps_as_it_would_alone():
    model, optimizer, scaler, x = scaled_parts()

    def train():
        scaler.scale(model(x).sum()).backward()
        scaler._growth_factor = "2"  # as somebody's subclass might
        scaler._growth_interval = None
        scaler.step(optimizer)

    assert [call for call in watched(train) if "unscale" not in call] == [
        "before_backward",
        "after_backward",
        "before_update",
        "after_update",
    ]


class Container(torch.optim.Optimizer):
    """Steps with optimizers of its own, as a container of several does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.inner = [torch.optim.SGD(group["params"], lr=0.1) for group in self.param_groups]

    def step(self, closure=None):
        for each in self.inner:
            each.step()


def test_what_steps_inside_the_step_of_one_that_holds_its_parameters_is_a_part_of_it():
    model, _, x = parts()
    container = Container(model.parameters())

    def train():
        for _ in range(2):
            model(x).sum().backward()
            container.step()

    assert watched(train) == ["before_backward", "after_backward", "before_update", "after_update"] * 2


def test_a_container_whose_step_raised_does_not_swallow_the_next_ones():
    model, optimizer, x = parts()
    container = Container(model.parameters())
    container.inner.append(None)

    def train():
        with contextlib.suppress(AttributeError):
            container.step()
        model(x).sum().backward()
        optimizer.step()

    assert watched(train)[-4:] == ["before_backward", "after_backward", "before_update", "after_update"]


UPDATE = ("before_update", "after_update")


class Mine(torch.optim.SGD):
    """torch hooks its step, and that of its base class once somebody has made one of that."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("has_closure", [False, True])
def test_a_step_that_calls_the_one_of_its_base_class_is_one_update(has_closure):
    def train():
        parameter = torch.nn.Parameter(torch.ones(3))
        torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
        optimizer = Mine([parameter], lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = parameter.square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            if has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()

    told = watched(train)

    assert [each for each in told if each in UPDATE] == [*UPDATE] * 3


def test_a_step_that_raised_does_not_swallow_the_next_one():
    class Raises(torch.optim.SGD):
        n = 0

        def step(self, closure=None):
            self.n += 1
            if self.n == 1:
                raise ValueError("once")
            return super().step(closure)

    def train():
        parameter = torch.nn.Parameter(torch.ones(3))
        torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
        optimizer = Raises([parameter], lr=0.1)
        for _ in range(3):
            parameter.grad = torch.ones(3)
            with contextlib.suppress(ValueError):
                optimizer.step()

    told = watched(train)

    assert [each for each in told if each in UPDATE] == ["before_update", *UPDATE * 2]
