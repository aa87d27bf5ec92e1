"""What two optimizers share is moved twice by one gradient: told where each has parameters of its own as well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

Parts = tuple[nn.Module, nn.Module, nn.Module]
"""An encoder and two heads."""
Make = Callable[[Parts], Sequence[Optimizer]]
Turn = Callable[[Parts, Sequence[Optimizer]], None]


def both_hold_the_encoder(parts: Parts) -> Sequence[Optimizer]:
    encoder, actor, critic = (list(part.parameters()) for part in parts)
    return Adam([*encoder, *actor], 1e-3), AdamW([*encoder, *critic], 1e-3)


def one_holds_it(parts: Parts) -> Sequence[Optimizer]:
    encoder, actor, critic = parts
    return Adam(chain(encoder.parameters(), actor.parameters()), 1e-3), Adam(critic.parameters(), 1e-3)


def a_part_is_pushed(parts: Parts) -> Sequence[Optimizer]:
    return Adam([p for part in parts for p in part.parameters()], 1e-3), SGD(parts[0].parameters(), 1e-3)


def two_kinds_of_all(parts: Parts) -> Sequence[Optimizer]:
    both = [p for part in parts for p in part.parameters()]
    return Adam(both, 1e-3), SGD(both, 1e-3)


class _Decays(SGD):
    """Uses no gradient."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.999)


def one_decays(parts: Parts) -> Sequence[Optimizer]:
    encoder, actor, critic = (list(part.parameters()) for part in parts)
    return Adam([*encoder, *actor], 1e-3), _Decays([*encoder, *critic], 1e-3)


class _Wraps(Optimizer):
    """Holds parameters of its own, and steps those of another in its step."""

    def __init__(self, inner: Optimizer, more: Sequence[Tensor]) -> None:
        super().__init__([*(p for group in inner.param_groups for p in group["params"]), *more], {"lr": 1e-3})
        self.inner = inner

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()


def one_in_the_other(parts: Parts) -> Sequence[Optimizer]:
    encoder, actor, critic = (list(part.parameters()) for part in parts)
    return (_Wraps(Adam([*encoder, *actor], 1e-3), critic),)


def losses(parts: Parts) -> tuple[Tensor, Tensor]:
    encoder, actor, critic = parts
    hidden = encoder(torch.randn(8, 4))
    return actor(hidden).square().mean(), critic(hidden).square().mean()


def one_backward(parts: Parts, optimizers: Sequence[Optimizer]) -> None:
    for each in optimizers:
        each.zero_grad()
    sum(losses(parts)).backward()  # type: ignore[union-attr]
    for each in optimizers:
        each.step()


def each_its_own(parts: Parts, optimizers: Sequence[Optimizer]) -> None:
    for each, number in zip(optimizers, (0, 1), strict=True):
        each.zero_grad()
        losses(parts)[number].backward()
        each.step()


def written_between(parts: Parts, optimizers: Sequence[Optimizer]) -> None:
    """The second uses gradients that were made by hand."""
    one, other = optimizers
    one.zero_grad()
    losses(parts)[0].backward()
    one.step()
    held = [p for group in other.param_groups for p in group["params"]]
    with torch.no_grad():
        for p in held:
            p.grad = torch.randn_like(p) if p.grad is None else p.grad.normal_()
    other.step()


def now_and_then(parts: Parts, optimizers: Sequence[Optimizer]) -> None:
    """The second update of what is shared is left out but for two steps."""
    one, other = optimizers
    one.zero_grad()
    other.zero_grad()
    sum(losses(parts)).backward()  # type: ignore[union-attr]
    one.step()
    now_and_then.n += 1  # type: ignore[attr-defined]
    if now_and_then.n % 4 == 0:  # type: ignore[attr-defined]
        other.step()


now_and_then.n = 0  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "turn", "severities"),
    [
        (both_hold_the_encoder, one_backward, ["warning"]),
        (one_holds_it, one_backward, []),
        (a_part_is_pushed, one_backward, []),
        (two_kinds_of_all, one_backward, []),
        (one_decays, one_backward, []),
        (one_in_the_other, one_backward, []),
        (both_hold_the_encoder, each_its_own, []),
        (both_hold_the_encoder, written_between, []),
        (both_hold_the_encoder, now_and_then, []),
    ],
)
def test_what_two_optimizers_share_moves_twice(make: Make, turn: Turn, severities: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2), nn.Linear(8, 1)
    optimizers = make(parts)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(10):
            turn(parts, optimizers)

    told = [each for each in diagnose(open_run(tmp_path)).findings if "two optimizers" in each.title]

    assert [each.severity for each in told] == severities
    assert all(each.step == 0 and each.param is not None for each in told)
