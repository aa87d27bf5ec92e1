"""A mean over micro-batches that is taken twice is told; other divisions by the same number are not."""

from __future__ import annotations

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

N = 4
Loss = Callable[[nn.Sequential, Tensor], Tensor]


def train(out: Path, loss_of: Loss, *, n: int = N, divides: float = 1.0, clips: float = 0.0) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=str(out)):
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(n):
                loss_of(model, torch.randn(N, 6)).backward()
            for p in model.parameters():
                assert p.grad is not None
                p.grad /= divides
            if clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clips)
            optimizer.step()
    return [each for each in diagnose(open_run(out)).findings if each.code == "HC232"]


def entropy(model: nn.Module, x: Tensor, reduction: str = "mean") -> Tensor:
    return functional.cross_entropy(model(x), x[:, :3].argmax(1), reduction=reduction)


def once(model: nn.Sequential, x: Tensor) -> Tensor:
    return entropy(model, x) / N


def twice(model: nn.Sequential, x: Tensor) -> Tensor:
    return once(model, x) / N


def by_a_factor(model: nn.Sequential, x: Tensor) -> Tensor:
    loss = once(model, x)
    loss = loss.float() * (1 / N)
    return loss  # noqa: RET504


def in_both_terms(model: nn.Sequential, x: Tensor) -> Tensor:
    return (once(model, x) + 0.1 * model(x).square().mean() / N) / N


@pytest.mark.slow
@pytest.mark.parametrize("fault", [twice, by_a_factor, in_both_terms], ids=lambda each: each.__name__)
@pytest.mark.parametrize("clips", [0.0, 0.01])
def test_a_loss_that_is_divided_twice_is_told(tmp_path: Path, fault: Loss, clips: float) -> None:
    found = train(tmp_path / "run", fault, clips=clips)

    assert [(f.severity, f.step, f.confidence) for f in found] == [("warning", 0, "likely")]
    assert found[0].title == "the gradient of every parameter is divided twice by the number of micro-batches"
    assert found[0].actual == 1 / N


def test_a_loss_and_its_gradients_that_are_divided_are_told(tmp_path: Path) -> None:
    assert [f.actual for f in train(tmp_path / "run", once, divides=N)] == [1 / N]


def heads(model: nn.Sequential, x: Tensor) -> Tensor:
    """A mean over as many terms as there are micro-batches."""
    return sum(entropy(model, x + 0.1 * torch.randn_like(x)) for _ in range(N)) / N / N  # type: ignore[return-value]


def by_sample(model: nn.Sequential, x: Tensor) -> Tensor:
    return entropy(model, x, reduction="none").sum() / N / N


def of_a_sum(model: nn.Sequential, x: Tensor) -> Tensor:
    return entropy(model, x, reduction="sum") / N / N


def one_weighs_less(model: nn.Sequential, x: Tensor) -> Tensor:
    return (entropy(model, x) + model(x).square().mean() / N) / N


def whole(model: nn.Sequential, x: Tensor) -> Tensor:
    return entropy(model, x)


HEALTHY: tuple[tuple[Loss, float], ...] = (
    (once, 1.0), (whole, N), (whole, 1.0), (whole, N * N), (heads, 1.0), (by_sample, 1.0), (of_a_sum, 1.0),
    (one_weighs_less, 1.0),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("healthy", "divides"), HEALTHY, ids=lambda each: getattr(each, "__name__", str(each)))
def test_other_divisions_are_left_alone(tmp_path: Path, healthy: Loss, divides: float) -> None:
    assert train(tmp_path / "run", healthy, divides=divides) == []


def test_half_of_a_squared_error_is_no_division(tmp_path: Path) -> None:
    found = train(tmp_path / "run", lambda model, x: (model(x) - x[:, :3]).square().mean() / 2 / 2, n=2)

    assert found == []


def test_a_framework_that_divides_too_is_told(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=N, cpu=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    with hypocenter.watch(out=str(tmp_path / "run")):
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(6 * N):
            with accelerator.accumulate(model):
                accelerator.backward(once(model, torch.randn(N, 6)))
                optimizer.step()
                optimizer.zero_grad()

    assert [
        f.title.rpartition(" is ")[2] for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC232"
    ] == ["divided twice by the number of micro-batches"]
