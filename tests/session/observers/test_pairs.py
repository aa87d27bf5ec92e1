"""Labels of another batch are told; what is compared on purpose with what came before is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_STEPS, WIDTH, SIZE, N = 24, 6, 8, 256
Losses = Callable[[nn.Module], Iterator[Tensor]]


def train(out: Path, losses: Losses) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=str(out), audit="never"):
        for loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [each for each in diagnose(open_run(out)).findings if each.code == "HC414"]


def tensors() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, WIDTH)
    return x, x[:, :3].argmax(1)


def loaded(n_passes: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(TensorDataset(*tensors()), batch_size=SIZE, shuffle=True)
    for _ in range(n_passes):
        yield from loader


def late(batches: Iterator[tuple[Tensor, Tensor]], model: nn.Module, n_late: int = 1) -> Iterator[Tensor]:
    kept: list[Tensor] = []
    for x, y in batches:
        kept.append(y)
        if len(kept) > n_late:
            yield functional.cross_entropy(model(x), kept[-1 - n_late])


def of_a_loader(model: nn.Module) -> Iterator[Tensor]:
    return late(loaded(), model)


def three_batches_late(model: nn.Module) -> Iterator[Tensor]:
    return late(loaded(), model, 3)


def moved_and_reshaped(model: nn.Module) -> Iterator[Tensor]:
    return late(((x.double().float(), y.to(torch.int32).long().view(-1)) for x, y in loaded()), model)


def by_indices(model: nn.Module) -> Iterator[Tensor]:
    x, y = tensors()
    batches = ((x[i], y[i]) for i in (torch.randint(0, N, (SIZE,)) for _ in range(N_STEPS)))
    return late(batches, model)


def by_places(model: nn.Module) -> Iterator[Tensor]:
    x, y = tensors()
    return late(((x[i : i + SIZE], y[i : i + SIZE]) for i in range(0, N, SIZE)), model)


def made_on_the_way(model: nn.Module) -> Iterator[Tensor]:
    batches = ((x, x[:, :3].argmax(1)) for x in (torch.randn(SIZE, WIDTH) for _ in range(N_STEPS)))
    return late(batches, model)


def in_a_criterion(model: nn.Module) -> Iterator[Tensor]:
    criterion, old = nn.CrossEntropyLoss(), None
    for x, y in loaded():
        if old is not None:
            yield criterion(model(x), old)
        old = y


FAULTS: tuple[Losses, ...] = (
    of_a_loader, three_batches_late, moved_and_reshaped, by_indices, by_places, made_on_the_way, in_a_criterion,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_labels_of_another_batch_are_told_once(tmp_path: Path, fault: Losses) -> None:
    found = train(tmp_path / "run", fault)

    assert [(f.severity, f.step < 16) for f in found] == [("warning", True)]
    assert found[0].source is not None
    assert "model(x)" in found[0].source.text
    assert ("3 micro-batches ago" in found[0].why[0]) == (fault is three_batches_late)


def test_labels_that_get_late_in_the_middle_are_told_there(tmp_path: Path) -> None:
    def losses(model: nn.Module) -> Iterator[Tensor]:
        old = None
        for step, (x, y) in enumerate(loaded(3)):
            yield functional.cross_entropy(model(x), y if step < 40 or old is None else old)
            old = y

    found = train(tmp_path / "run", losses)

    assert [f.step for f in found] == [68]


def right(model: nn.Module) -> Iterator[Tensor]:
    return late(loaded(), model, 0)


def right_by_places(model: nn.Module) -> Iterator[Tensor]:
    x, y = tensors()
    return late(((x[i : i + SIZE], y[i : i + SIZE]) for i in range(0, N, SIZE)), model, 0)


def fetched_ahead(model: nn.Module) -> Iterator[Tensor]:
    batches = loaded()
    x, y = next(batches)
    for ahead in batches:
        yield functional.cross_entropy(model(x), y)
        x, y = ahead


def labelled_and_not(model: nn.Module) -> Iterator[Tensor]:
    batches = loaded(2)
    for (x, y), (other, _) in zip(batches, batches, strict=False):
        yield functional.cross_entropy(model(x), y) + model(other).softmax(-1).square().mean()


def pipelined(model: nn.Module) -> Iterator[Tensor]:
    """In each step the forward of a micro-batch is made before the loss of the one before."""
    for _ in range(4):
        waiting: list[tuple[Tensor, Tensor]] = []
        for x, y in itertools.islice(loaded(), 7):
            waiting.append((model(x), y))
            if len(waiting) > 1:
                out, labels = waiting.pop(0)
                functional.cross_entropy(out, labels).backward()
        yield functional.cross_entropy(*waiting.pop())


def series(offset: int) -> Losses:
    def losses(model: nn.Module) -> Iterator[Tensor]:
        data = torch.randn(N, SIZE, WIDTH)
        for t in range(1, N_STEPS):
            yield (model(data[t]) - data[t + offset, :, :3]).square().mean()

    losses.__name__ = f"series_{offset}"
    return losses


def back_in_a_stream(model: nn.Module) -> Iterator[Tensor]:
    """What it was given before is asked for, itself."""
    old = torch.randn(SIZE, WIDTH)
    for _ in range(N_STEPS):
        x = torch.randn(SIZE, WIDTH)
        yield (model(x).sum(1, keepdim=True) - old).square().mean()
        old = x


def remembered(model: nn.Module) -> Iterator[Tensor]:
    """A task of memory: the model is given what it computed before."""
    state, old = torch.zeros(SIZE, 3), None
    for _ in range(N_STEPS):
        x = torch.randn(SIZE, WIDTH - 3)
        out = model(torch.cat([x, state], 1))
        state = out.detach()
        yield (out - (x if old is None else 2 * old)).square().mean()
        old = x


def in_two_phases(model: nn.Module) -> Iterator[Tensor]:
    """What is computed from the batch is trained on too, in a step of its own."""
    for x, y in loaded():
        yield functional.cross_entropy(model(x), y)
        with torch.no_grad():
            near = x + 0.1 * torch.randn_like(x)
        yield functional.cross_entropy(model(near), y)


def beside_a_memory(model: nn.Module) -> Iterator[Tensor]:
    """Labels and outputs of batches before take part."""
    kept: list[tuple[Tensor, Tensor]] = []
    for x, y in loaded():
        out = model(x)
        loss = functional.cross_entropy(out, y)
        for other, labels in kept[-2:]:
            loss = loss + 0.1 * ((out @ other.T).sigmoid() - (y[:, None] == labels).float()).square().mean()
        kept.append((out.detach(), y))
        yield loss


def without_labels(model: nn.Module) -> Iterator[Tensor]:
    for x, _ in loaded():
        yield model(x).square().mean()


HEALTHY: tuple[Losses, ...] = (
    right, right_by_places, fetched_ahead, labelled_and_not, pipelined, series(-1), series(1), back_in_a_stream,
    remembered, in_two_phases, beside_a_memory, without_labels,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda each: each.__name__)
def test_what_belongs_together_or_is_asked_for_is_left_alone(tmp_path: Path, healthy: Losses) -> None:
    assert train(tmp_path / "run", healthy) == []
