"""What no checkpoint holds, and a resumed model has otherwise than the one that was saved."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, AT, WARM = 20, 12, 8


class Range(nn.Module):
    """A quantiser whose range follows the data, and is held after a while."""

    def __init__(self, kind: str = "tensor") -> None:
        super().__init__()
        self.kind, self.n, self.observes = kind, 0, True
        if kind == "buffer":
            self.register_buffer("range", torch.tensor(1.0))
        elif kind == "number":
            self.range = 1.0
        else:
            self.range = torch.tensor(1.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.observes:
            peak = x.detach().abs().max()
            self.range = float(peak) if self.kind == "number" else peak
            self.n += 1
        limit = torch.as_tensor(self.range)
        held = x.clamp(-limit, limit)
        return held + ((held / limit * 7).round() / 7 * limit - held).detach()


class Turned(nn.Module):
    """Positions are turned by frequencies that are made from a base."""

    frequencies: Tensor

    def __init__(self, base: float, *, is_read: bool = True) -> None:
        super().__init__()
        self.is_read = is_read
        self.register_buffer("frequencies", base ** -torch.linspace(0, 1, 8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.cos(self.frequencies) if self.is_read else x


class Kept(nn.Module):
    """Holds what the forward fills, what only counts, and a number that the program gives it."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight, self.n, self.seen, self.cache = weight, 0, torch.zeros(()), torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        self.n += self.training
        self.seen = self.seen + 1
        self.cache = torch.linspace(0.5, 1.5, 8)
        return self.weight * x * self.cache


def net(part: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), part, nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))


Make = Callable[[int], nn.Sequential]


def train(
    out: Path, make: Make, *, at: Callable[[nn.Sequential, int], None] = lambda model, step: None,
    has_state: bool = True, is_same: bool = False, save: Callable[[nn.Sequential], Any] | None = None,
) -> list[tuple[str, int, str | None]]:  # fmt: skip
    """Train, and go on with a model that is made anew and loaded; return what is told."""
    torch.manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        model = make(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(N_STEPS):
            if step == AT:
                state = (save or (lambda model: copy.deepcopy(model.state_dict())))(model), optimizer.state_dict()
                model = model if is_same else make(1)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                model.load_state_dict(state[0])
                if has_state:
                    optimizer.load_state_dict(state[1])
            at(model, step)
            optimizer.zero_grad()
            model(3 * torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    told = [each for each in findings(out) if each.severity != "note"]
    return [(each.code, each.step, each.site) for each in told]


def holds_after(model: nn.Sequential, step: int) -> None:
    vars(model[1])["observes"] = step < WARM


def of_range(kind: str) -> Make:
    return lambda _: net(Range(kind))


def of_base(base: float, *, is_read: bool = True) -> Make:
    return lambda number: net(Turned((10.0, base)[number], is_read=is_read))


@pytest.mark.parametrize("kind", ["tensor", "number"])
def test_a_range_that_no_checkpoint_holds_is_told(kind: str, tmp_path: Path) -> None:
    assert train(tmp_path, of_range(kind), at=holds_after) == [("HC255", AT, "1.range")]


def test_frequencies_of_another_base_are_told(tmp_path: Path) -> None:
    assert train(tmp_path, of_base(100.0)) == [("HC255", AT, "1.frequencies")]


def set_to_its_step(model: nn.Sequential, step: int) -> None:
    next(model[1].buffers()).fill_(1.0 + step / 10)


def evaluated(model: nn.Sequential) -> Any:
    """Kept in evaluation, for which a number is set to something else."""
    model.eval()
    vars(model[1])["weight"] = 0.0
    state = copy.deepcopy(model.state_dict())
    vars(model[1])["weight"] = 1.0
    model.train()
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (of_range("buffer"), {"at": holds_after}),
        (of_range("tensor"), {}),
        (of_range("tensor"), {"at": holds_after, "has_state": False}),
        (of_range("tensor"), {"at": holds_after, "is_same": True}),
        (of_base(10.0), {}),
        (of_base(100.0, is_read=False), {}),
        (of_base(100.0), {"at": set_to_its_step}),
        (lambda _: net(Kept()), {}),
        (lambda _: net(Kept()), {"save": evaluated}),
        (lambda number: net(Kept(weight=1.0 - number / 2)), {}),
        (lambda number: net(nn.Dropout(0.1 * number)), {}),
        (lambda number: net((nn.ReLU, nn.GELU)[number]()), {}),
    ],
    ids=[
        "in the checkpoint", "measured again", "another stage", "one model", "one base", "read by nobody",
        "set at each step", "caches and counters", "set for evaluation", "made with another number", "dropout",
        "another structure",
    ],
)  # fmt: skip
def test_what_is_the_same_is_set_again_or_is_of_no_matter_is_not(
    make: Make, options: dict[str, Any], tmp_path: Path
) -> None:
    assert train(tmp_path, make, **options) == []


@pytest.mark.slow
def test_a_copy_that_follows_may_hold_something_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        model, teacher = net(Turned(10.0)), net(Turned(100.0)).requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(N_STEPS):
            if step % 5 == 4:
                teacher.load_state_dict(model.state_dict())
                optimizer.load_state_dict(optimizer.state_dict())
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            (model(x) - teacher(x)).square().mean().backward()
            optimizer.step()

    assert [each.code for each in findings(tmp_path) if each.severity != "note"] == []
