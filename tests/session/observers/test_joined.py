"""A model that comes to lie in the memory of the one that is trained is named; one that always did is not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

Refresh = Callable[[nn.Module, nn.Module], None]
AT = 9  # the step before which the target is refreshed first


def shared(target: nn.Module, online: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data = p.data


def assigned(target: nn.Module, online: nn.Module) -> None:
    target.load_state_dict(online.state_dict(), assign=True)
    target.requires_grad_(False)


def copied(target: nn.Module, online: nn.Module) -> None:
    target.load_state_dict(online.state_dict())


def exchanged(target: nn.Module, online: nn.Module) -> None:
    for t, p in zip(target.parameters(), online.parameters(), strict=True):
        t.data, p.data = p.data, t.data


def for_an_evaluation(target: nn.Module, online: nn.Module) -> None:
    own = [t.data for t in target.parameters()]
    shared(target, online)
    with torch.no_grad():
        target(torch.randn(8, 6))
    for t, value in zip(target.parameters(), own, strict=True):
        t.data = value


def told(refresh: Refresh, out: Path, *, is_one_at_first: bool = False) -> list[tuple[str, str, int, str]]:
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    target = copy.deepcopy(online).requires_grad_(False)
    if is_one_at_first:
        shared(target, online)
    optimizer = torch.optim.SGD(online.parameters(), 0.1)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out), audit="never"):
        for step in range(30):
            if step and step % AT == 0:
                refresh(target, online)
            x = torch.randn(8, 6)
            with torch.no_grad():
                aim = target(x)
            optimizer.zero_grad()
            (online(x) - 0.9 * aim).square().mean().backward()
            optimizer.step()
    return [(each.code, each.severity, each.step, each.title) for each in findings(out) if each.code == "HC265"]


@pytest.mark.parametrize("refresh", [shared, assigned])
def test_a_target_that_is_refreshed_by_its_memory_is_told(refresh: Refresh, tmp_path: Path) -> None:
    title = "target.0.weight has come to be online.0.weight, in one memory"
    assert told(refresh, tmp_path) == [("HC265", "warning", 12, title)]


@pytest.mark.parametrize("refresh", [copied, exchanged, for_an_evaluation])
def test_what_stays_apart_is_left_alone(refresh: Refresh, tmp_path: Path) -> None:
    assert told(refresh, tmp_path) == []


def test_what_is_one_from_the_beginning_may_be_meant(tmp_path: Path) -> None:
    assert told(shared, tmp_path, is_one_at_first=True) == []


def test_a_part_that_is_called_alone_too_is_left_alone(tmp_path: Path) -> None:
    def part(target: nn.Module, online: nn.Module) -> None:
        online[0](torch.randn(8, 6))

    assert told(part, tmp_path) == []
