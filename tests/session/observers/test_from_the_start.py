"""What is wrong from the first step on, so that no habit can tell: the program contradicts itself."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from tests.session.observers.test_laws import findings

N_STEPS = 24


class Net(nn.Module):
    """An embedding, a middle with dropout, a head."""

    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.embed, self.middle, self.drop = nn.Embedding(20, 12), nn.Linear(12, 12), nn.Dropout(0.1)
        self.head = nn.Linear(12, 20, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.middle(self.embed(tokens)))))


def loss_of(model: nn.Module) -> Tensor:
    tokens = torch.randint(0, 20, (16,))
    return functional.cross_entropy(model(tokens), (tokens + 1) % 20)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def nothing(_: int) -> None:
    """Nothing is done."""


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, between: Callable[[int], None] = nothing,
    *, before: Callable[[int], None] = nothing,
) -> None:  # fmt: skip
    """A loop; `before` is called before each step, `between` before the optimizer uses its gradients."""
    for step in range(N_STEPS):
        before(step)
        optimizer.zero_grad()
        loss_of(model).backward()
        between(step)
        optimizer.step()


def zeroed_too_late(*, to_none: bool) -> Callable[[], None]:
    def job() -> None:
        model = Net()
        optimizer = adam(model)
        trained(model, optimizer, lambda _: optimizer.zero_grad(set_to_none=to_none))

    return job


def head_built_anew() -> None:
    model = Net()
    optimizer = adam(model)
    model.head = nn.Linear(12, 20, bias=False)
    trained(model, optimizer)


def optimizer_of_a_copy() -> None:
    model = Net()
    optimizer = adam(model)
    trained(copy.deepcopy(model), optimizer)


def untied() -> None:
    model = Net(is_tied=True)

    def untie(step: int) -> None:
        if step == 5:
            model.head.weight = nn.Parameter(model.embed.weight.detach().clone())

    trained(model, adam(model), before=untie)


def a_new_head_on_purpose() -> None:
    model = Net()
    trained(model, adam(model))
    model.head = nn.Linear(12, 30, bias=False)
    trained(model, adam(model))


def only_the_head_is_trained() -> None:
    model = Net()
    trained(model, adam(model.head))


def two_that_take_turns() -> None:
    """Both optimizers step each time; one of them often has nothing to do."""
    first, second = Net(), Net()
    optimizers = [adam(first), adam(second)]
    for step in range(N_STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(second if step >= N_STEPS // 2 else first).backward()
        for optimizer in optimizers:
            optimizer.step()


def a_loss_of_zero() -> None:
    """A hinge that is reached has no gradient: the replay says the same."""
    model = Net()
    optimizer = adam(model)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        torch.relu(loss_of(model) - 100.0).backward()
        optimizer.step()


FAULTS: dict[str, tuple[Callable[[], None], str, int, str | None]] = {
    "zeroed after backward": (zeroed_too_late(to_none=False), "HC232", 1, None),
    "none after backward": (zeroed_too_late(to_none=True), "HC232", 1, None),
    "a head built anew": (head_built_anew, "HC233", 0, "head.weight"),
    "the optimizer of a copy": (optimizer_of_a_copy, "HC233", 0, "embed.weight"),
    "untied": (untied, "HC233", 5, "head.weight"),
}
HEALTHY: dict[str, Callable[[], None]] = {
    "a new head with a new optimizer": a_new_head_on_purpose,
    "only the head is trained": only_the_head_is_trained,
    "two that take turns": two_that_take_turns,
    "a loss of zero": a_loss_of_zero,
}


def warnings(job: Callable[[], None], out: Path) -> list[Finding]:
    torch.manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        job()
    return [each for each in diagnose(open_run(out)).findings if each.severity != "note"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_from_the_start_is_named(name: str, tmp_path: Path) -> None:
    job, code, step, parameter = FAULTS[name]

    found = warnings(job, tmp_path)

    assert [each.code for each in found] == [code]
    assert (found[0].param, found[0].step) == (parameter, step)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_so_is_not(name: str, tmp_path: Path) -> None:
    assert warnings(HEALTHY[name], tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_new_optimizer_without_the_state_of_the_old_one_is_a_note(is_loaded: bool, tmp_path: Path) -> None:
    def job() -> None:
        model = Net()
        first, second = adam(model), adam(model)
        trained(model, first)
        if is_loaded:
            second.load_state_dict(first.state_dict())
        trained(model, second)

    warned = warnings(job, tmp_path)

    assert warned == []
    noted = {(each.code, each.title) for each in findings(tmp_path)}
    assert noted == (set() if is_loaded else {("HC231", "the optimizer's state begins anew")})
