"""Micro-batches that a Trainer adds up although the loss of each is a mean are told; those of others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N = 4
LossOf = Callable[[Tensor, Tensor, Any], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 5)

    def forward(self, x: Tensor, labels: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """With **kwargs a Trainer takes the loss to be divided by `num_items_in_batch`."""
        return {"logits": self.up(x)}


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(6, generator=generator), "labels": torch.tensor(index % 5)}


def trained(out: Path, loss_of: LossOf, *, n: int = N, kind: dict[str, Any] | None = None) -> list[Finding]:
    from transformers import Trainer, TrainingArguments

    class Ours(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **_: Any) -> Any:
            return loss_of(model(**inputs)["logits"], inputs["labels"], num_items_in_batch)

    arguments = TrainingArguments(
        output_dir=str(out), max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=n, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = Ours(model=Net(), args=arguments, train_dataset=Rows())
    for name, value in (kind or {}).items():
        setattr(trainer, name, value)
    with hypocenter.watch(out=str(out / "run")):
        trainer.train()
    return [each for each in diagnose(open_run(out / "run")).findings if each.severity != "note"]


def mean(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return functional.cross_entropy(logits, labels)


def by_all(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="sum") / n_items


def summed(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="sum")


def focal(logits: Tensor, labels: Tensor, n_items: Any, n: Any = None) -> Tensor:
    """By its own labels alone."""
    each = functional.cross_entropy(logits, labels, reduction="none")
    return ((1.0 - (-each).exp()) * each).sum() / (n or labels.numel())


def focal_by_all(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return focal(logits, labels, None, n_items)


def focal_shared(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return focal(logits, labels, None) * labels.numel() / n_items


def focal_and_more(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return focal(logits, labels, None, n_items) + logits.square().mean() / N


def weighted(logits: Tensor, labels: Tensor, n_items: Any, n: Any = None) -> Tensor:
    """Classes weigh otherwise, and some labels are of padding."""
    labels = labels.masked_fill(labels == 0, -100)
    each = functional.cross_entropy(logits, labels, weight=torch.arange(1.0, 6.0), reduction="none")
    return each.sum() / ((labels != -100).sum() if n is None else n)


def weighted_by_all(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return weighted(logits, labels, None, n_items)


def weighted_shared(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return weighted(logits, labels, None) / N


def masked(logits: Tensor, labels: Tensor, n_items: Any, n: Any = None) -> Tensor:
    """Of no cross-entropy."""
    mask = (labels > 1).float()
    return (mask * (logits.mean(-1) - labels).square()).sum() / (mask.sum().clamp(min=1) if n is None else n)


def masked_by_all(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return masked(logits, labels, None, n_items)


def smoothed(logits: Tensor, labels: Tensor, n_items: Any) -> Tensor:
    return functional.cross_entropy(logits, labels) / N


@pytest.mark.parametrize("loss_of", [focal, mean, weighted, masked])
def test_means_that_a_trainer_adds_up(loss_of: LossOf, tmp_path: Path) -> None:
    (found,) = trained(tmp_path, loss_of)

    assert (found.code, found.severity, found.confidence, found.step) == ("HC232", "warning", "likely", 0)
    assert found.title.endswith("is 4 times a mean: nobody divides by the number of micro-batches")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_of", "options"),
    [
        (by_all, {}),
        (focal_by_all, {}),
        (focal_shared, {}),
        (focal_and_more, {}),
        (weighted_by_all, {}),
        (weighted_shared, {}),
        (weighted, {"n": 1}),
        (weighted, {"kind": {"model_accepts_loss_kwargs": False}}),
        (masked_by_all, {}),
        (masked, {"kind": {"loss_is_scaled_for_ga": False}}),
        (focal, {"kind": {"model_accepts_loss_kwargs": False}}),
        (summed, {}),
        (smoothed, {}),
        (mean, {"n": 1}),
        (mean, {"kind": {"loss_is_scaled_for_ga": False}}),
        (mean, {"kind": {"model_accepts_loss_kwargs": False}}),
    ],
)
def test_what_is_a_mean_or_meant_otherwise(tmp_path: Path, loss_of: LossOf, options: dict[str, Any]) -> None:
    assert trained(tmp_path, loss_of, **options) == []


@pytest.mark.slow
def test_a_loop_of_ones_own_may_mean_the_sum(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(out=str(tmp_path)):
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(N):
                functional.cross_entropy(model(torch.randn(4, 6))["logits"], torch.arange(4)).backward()
            optimizer.step()

    assert not [each for each in diagnose(open_run(tmp_path)).findings if each.severity != "note"]
