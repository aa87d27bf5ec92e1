"""A hook that hangs twice and acts twice is told; one that acts once or not at all, or differs, is not."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, FROM = 12, 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.head = nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.up(x))))


Hang = Callable[[Net], object]


def told(out: Path, hang: Hang, *, at: tuple[int, ...] = (0, FROM)) -> list[tuple[str, int]]:
    """Sites and steps of what is told of a training that hangs hooks at these steps."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out), audit="never"):
        for step in range(N_STEPS):
            if step in at:
                hang(model)
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    found = [f for f in findings(out) if f.code == "HC266"]
    assert all(f.severity == "warning" for f in found)
    return [(f.site, f.step) for f in found]


def on_gradient(model: Net) -> None:
    model.up.weight.register_hook(lambda g: g * 0.5)


def on_output(model: Net) -> None:
    model.up.register_forward_hook(lambda module, args, out: out * 0.7)


def on_input(model: Net) -> None:
    model.head.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True)


def in_place(model: Net) -> None:
    def scale(module: nn.Module, args: Any, out: Tensor) -> None:
        out.data.mul_(0.7)

    model.up.register_forward_hook(scale)


def on_module_gradient(model: Net) -> None:
    model.head.register_full_backward_hook(lambda module, into, out: (into[0] * 0.5,))


def of_equal_parts(model: Net) -> None:
    factor = 0.5
    model.up.weight.register_hook(functools.partial(lambda by, g: g * by * factor, 0.9))


def test_what_hangs_twice_and_acts_twice(tmp_path):
    assert told(tmp_path, on_gradient) == [("up.weight", FROM)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hang", "site"),
    [
        (on_output, "up"),
        (on_input, "head"),
        (in_place, "up"),
        (on_module_gradient, "head"),
        (of_equal_parts, "up.weight"),
    ],
)
def test_other_kinds(hang, site, tmp_path):
    assert told(tmp_path, hang) == [(site, FROM)]


@pytest.mark.slow
def test_twice_from_the_start_and_again(tmp_path):
    """It is told once."""
    assert told(tmp_path, lambda m: [on_gradient(m), on_gradient(m)], at=(0, 7)) == [("up.weight", 0)]


# what must stay silent


def limits(model: Net) -> None:
    """The second time it changes nothing."""
    model.up.weight.register_hook(lambda g: g.clamp(-1e-3, 1e-3))


def norms(model: Net) -> None:
    """Nor here, but for rounding."""
    model.up.register_forward_hook(lambda module, args, out: out / out.norm(dim=1, keepdim=True))


def differs_each_time(model: Net) -> None:
    """Its noise comes from what no replay can put back: what the second one does cannot be told."""
    model.up.register_forward_hook(noisy)


def noisy(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * os.urandom(1)[0] / 255


def listens(model: Net) -> None:
    seen = model.__dict__.setdefault("seen", [])
    model.up.register_forward_hook(lambda module, args, out: seen.append(out.detach().norm()))


def draws(model: Net) -> None:
    """It looks at some elements at random: what is drawn after it changes with it."""

    def look(module: nn.Module, args: Any, out: Tensor) -> None:
        out.detach().flatten()[torch.randint(0, out.numel(), (3,))].norm()

    model.up.register_forward_hook(look)


def of_other_parts(model: Net) -> None:
    for factor in (0.5, 0.9):
        model.up.weight.register_hook(lambda g, by=factor: g * by)
        model.up.weight.register_hook(functools.partial(torch.mul, other=factor))


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def act(self, g: Tensor) -> Tensor:
        return g * self.by


def of_two_objects(model: Net) -> None:
    for by in (0.5, 0.9):
        model.up.weight.register_hook(Scale(by).act)
        weight = torch.tensor(by)
        model.up.weight.register_hook(lambda g, weight=weight: g * weight)


def taken_off(model: Net) -> None:
    handle = model.__dict__.pop("handle", None)
    if handle is not None:
        handle.remove()
    model.__dict__["handle"] = model.up.weight.register_hook(lambda g: g * 0.5)


def on_each(model: Net) -> None:
    """One function, once on each of several."""
    if "done" not in model.__dict__:
        model.__dict__["done"] = True
        for parameter in model.parameters():
            parameter.register_hook(halve)


def halve(g: Tensor) -> Tensor:
    return g * 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "hang", [limits, norms, differs_each_time, listens, draws, of_other_parts, of_two_objects, taken_off, on_each]
)
def test_what_acts_once(hang, tmp_path):
    at = (0,) if hang in (of_other_parts, of_two_objects) else (0, FROM)
    assert told(tmp_path, hang, at=at) == []


def test_training_is_the_same_to_the_bit(tmp_path):
    """What is dropped in a replay is put back."""

    def trained(*, is_watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watched = hypocenter.watch(out=str(tmp_path)) if is_watched else contextlib.nullcontext()
        with contextlib.redirect_stderr(None), watched:
            for step in range(N_STEPS):
                if step in (0, FROM):
                    for hang in (on_gradient, on_output, on_input, in_place, draws):
                        hang(model)
                optimizer.zero_grad()
                model(torch.randn(8, 6)).square().mean().backward()
                optimizer.step()
        return list(model.parameters())

    assert all(map(torch.equal, trained(is_watched=True), trained(is_watched=False)))
