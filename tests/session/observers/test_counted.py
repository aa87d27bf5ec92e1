"""A count beside the graph that a format stops is told; one that fits, cancels, or belongs to the model is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.nouns import Finding
from hypocenter.session.observers import precision
from tests.session.observers.test_laws import findings

SHORT = torch.bfloat16  # it has all whole numbers up to 256
Count = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def the_machine_may_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "FREE_S", 60.0)


def told(count: Count, out: Path, *, n: int = 600) -> list[Finding]:
    """What is told of a sum over samples that is divided by what `count` makes of a mask and of the losses."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for _ in range(9):
            mask = torch.ones(n)
            optimizer.zero_grad()
            losses = (model(torch.randn(n, 4)).squeeze(1) - 1.0).square() * mask
            (losses.sum() / count(mask, losses)).backward()
            optimizer.step()
    return [f for f in findings(out) if f.code == "HC236"]


def one_by_one(mask: Tensor, _: Tensor) -> Tensor:
    total = torch.zeros((), dtype=SHORT)
    for each in mask.view(-1, 2).sum(1).to(SHORT).unbind():
        total += each
    return total.float()


def of_new_tensors(mask: Tensor, _: Tensor) -> Tensor:
    total = torch.zeros((), dtype=SHORT)
    for each in mask.to(SHORT).unbind():
        total = total + each
    return total.float()


def test_a_count_that_a_short_format_stops(tmp_path: Path) -> None:
    (found,) = told(one_by_one, tmp_path, n=1200)

    assert (found.code, found.severity) == ("HC236", "warning")
    assert found.source is not None
    assert found.source.function == "one_by_one"
    assert found.actual == pytest.approx(1 - 512 / 1200)  # twos are added up to 512


@pytest.mark.night
@pytest.mark.slow
def test_also_where_each_sum_is_a_new_tensor(tmp_path: Path) -> None:
    (found,) = told(of_new_tensors, tmp_path)

    assert (found.severity, found.actual) == ("warning", pytest.approx(1 - 256 / 600))


def at_once(mask: Tensor, _: Tensor) -> Tensor:
    return mask.to(SHORT).sum().float()


def in_float32(mask: Tensor, _: Tensor) -> Tensor:
    total = torch.zeros(())
    for each in mask.unbind():
        total += each
    return total


def cancels(mask: Tensor, _: Tensor) -> Tensor:
    """The difference of large numbers is coarse, as anybody knows."""
    apart = (mask.to(SHORT).sum() * 1.003 - mask.to(SHORT).sum() * 0.999).float()
    return mask.sum() + 1e-3 * apart


def of_the_model(_: Tensor, losses: Tensor) -> Tensor:
    """An average of losses, in a short format: rounding of what is learned is none of it."""
    total = torch.zeros((), dtype=SHORT)
    for each in losses.detach().to(SHORT).unbind():
        total += each
    return total.float() + 1.0


@pytest.mark.slow
@pytest.mark.parametrize("count", [at_once, in_float32, cancels, of_the_model])
def test_usual_counts(count: Count, tmp_path: Path) -> None:
    assert told(count, tmp_path) == []


@pytest.mark.slow
def test_a_count_that_fits(tmp_path: Path) -> None:
    assert told(of_new_tensors, tmp_path, n=200) == []
