"""Backward, clipping, scaling and steps reach the listener, once each and in order."""

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

    assert calls.count("before_update") == calls.count("before_backward") > 1
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
