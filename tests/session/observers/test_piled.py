"""Gradients that one model's loss leaves in another's parameters, and that are used there, are a note."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

Pair = tuple[nn.Module, torch.optim.Optimizer]
Turn = Callable[[Pair, Pair], None]


def critic_first(maker: Pair, critic: Pair, *, detaches: bool) -> None:
    fake = maker[0](torch.randn(8, 4))
    critic[1].zero_grad()
    critic[0](fake.detach() if detaches else fake).mean().backward(retain_graph=True)
    critic[1].step()


def piles(maker: Pair, critic: Pair) -> None:
    critic_first(maker, critic, detaches=False)
    (-critic[0](maker[0](torch.randn(8, 4))).mean()).backward()
    maker[1].step()
    maker[1].zero_grad()


def agree(maker: Pair, critic: Pair) -> None:
    critic_first(maker, critic, detaches=False)
    critic[0](maker[0](torch.randn(8, 4))).mean().backward()
    maker[1].step()
    maker[1].zero_grad()


def zeroes_first(maker: Pair, critic: Pair) -> None:
    critic_first(maker, critic, detaches=False)
    maker[1].zero_grad()
    (-critic[0](maker[0](torch.randn(8, 4))).mean()).backward()
    maker[1].step()


def zeroes_in_place(maker: Pair, critic: Pair) -> None:
    critic_first(maker, critic, detaches=False)
    maker[1].zero_grad(set_to_none=False)
    (-critic[0](maker[0](torch.randn(8, 4))).mean()).backward()
    maker[1].step()


def detaches(maker: Pair, critic: Pair) -> None:
    critic_first(maker, critic, detaches=True)
    (-critic[0](maker[0](torch.randn(8, 4))).mean()).backward()
    maker[1].step()
    maker[1].zero_grad()


def one_loss(maker: Pair, critic: Pair) -> None:
    for _, optimizer in (maker, critic):
        optimizer.zero_grad()
    critic[0](maker[0](torch.randn(8, 4))).square().mean().backward()
    for _, optimizer in (maker, critic):
        optimizer.step()


def polluted(maker: Pair, critic: Pair) -> None:
    """The critic goes first, and its gradients are cleared after its own step only."""
    fake = maker[0](torch.randn(8, 4))
    (critic[0](torch.randn(8, 4)) - critic[0](fake.detach())).mean().backward()
    critic[1].step()
    critic[1].zero_grad()
    maker[1].zero_grad()
    critic[0](fake).square().mean().backward()
    maker[1].step()


def clears_before(maker: Pair, critic: Pair) -> None:
    critic[1].zero_grad()
    polluted(maker, critic)


def in_turn(maker: Pair, critic: Pair) -> None:
    """One loss, and each of two optimizers uses what has come together since its last update."""
    for _, optimizer in (critic, maker):
        critic[0](maker[0](torch.randn(8, 4))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def two_heads(head: Pair, body: Pair) -> None:
    """A body learns of two losses, of which one has an optimizer of its own."""
    hidden = torch.randn(8, 4)
    (body[0](hidden) * head[0](hidden).mean()).mean().backward()
    head[1].step()
    head[1].zero_grad()
    body[0](torch.randn(8, 4)).square().mean().backward()
    body[1].step()
    body[1].zero_grad()


def never_cleared(maker: Pair, critic: Pair) -> None:
    """The critic's gradients add up from step to step; no other loss ever reaches them."""
    maker[1].zero_grad()
    fake = maker[0](torch.randn(8, 4))
    fake.square().mean().backward()
    maker[1].step()
    critic[0](fake.detach()).square().mean().backward()
    critic[1].step()


def test_what_its_own_loss_left_is_of_the_step_before(tmp_path: Path) -> None:
    assert told(never_cleared, tmp_path) == set()
    own = next(each for each in findings(tmp_path) if each.code == "HC232")
    assert (own.site, own.step) == ("critic.weight", 1)
    assert "still holds that of the step before" in own.title


def test_each_of_two_optimizers_balances_by_itself(tmp_path: Path) -> None:
    told(detaches, tmp_path)
    assert not [each for each in findings(tmp_path) if each.code == "HC232"]


@pytest.mark.parametrize(
    ("turn", "severities"),
    [(polluted, {"warning"}), (clears_before, set()), (in_turn, {"note"}), (two_heads, {"note"})],
)
def test_what_was_left_in_the_step_before_is_a_warning(turn: Turn, severities: set[str], tmp_path: Path) -> None:
    assert told(turn, tmp_path) == severities


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turn", "severities"),
    [
        (piles, {"warning"}),
        (agree, {"note"}),
        (zeroes_first, set()),
        (zeroes_in_place, set()),
        (detaches, set()),
        (one_loss, set()),
    ],
)
def test_what_another_loss_has_left_and_is_used(turn: Turn, severities: set[str], tmp_path: Path) -> None:
    """Nobody adds two losses of which one asks for the contrary of the other."""
    assert told(turn, tmp_path) == severities


def told(turn: Turn, out: Path) -> set[str]:
    torch.manual_seed(0)
    maker, critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)), nn.Linear(4, 1)
    both = [(model, torch.optim.Adam(model.parameters(), 1e-3)) for model in (maker, critic)]
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for _ in range(10):
            turn(*both)
    return {each.severity for each in findings(out) if "another optimizer's loss" in each.title}
