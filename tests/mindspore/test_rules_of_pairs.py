"""Labels of another batch in MindSpore are told; what is compared on purpose with what came before is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset, nn, ops

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

WIDTH, SIZE, N = 6, 8, 160
Batch = tuple[Any, ...]


def net_of(width: int = WIDTH) -> Any:
    ms.set_seed(1)
    return nn.SequentialCell(nn.Dense(width, 16), nn.ReLU(), nn.Dense(16, 3))


def loaded() -> Iterator[Batch]:
    x = np.random.default_rng(0).normal(size=(N, WIDTH)).astype(np.float32)
    columns = {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}
    found = dataset.NumpySlicesDataset(columns, shuffle=False).batch(SIZE)
    yield from found.create_tuple_iterator(num_epochs=1)


def late(batches: Iterator[Batch], n_late: int = 1) -> Iterator[Batch]:
    kept: list[Any] = []
    for x, y in batches:
        kept.append(y)
        if len(kept) > n_late:
            yield x, kept[-1 - n_late]


def of_named_columns() -> Iterator[Batch]:
    x = np.random.default_rng(0).normal(size=(N, WIDTH)).astype(np.float32)
    columns = {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}
    batches = dataset.NumpySlicesDataset(columns, shuffle=True).batch(SIZE).create_dict_iterator(num_epochs=1)
    yield from late((each["x"], each["y"]) for each in batches)


def train(out: Path, batches: Iterator[Batch], *, how: str = "function", net: Any = None) -> list[Finding]:
    net = net or net_of()
    optimizer, loss = nn.SGD(net.trainable_params(), 0.1), nn.CrossEntropyLoss()
    gradient = ms.value_and_grad(lambda x, *y: loss(net(x), *y[:1]), None, optimizer.parameters)
    whole = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
    with hypocenter.watch(net, out=str(out), audit="never"):
        for batch in batches:
            if how == "cell":
                whole(*batch)
            else:
                optimizer(gradient(*batch)[1])
    return [each for each in diagnose(open_run(out)).findings if each.code == "HC414"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batches", "how", "n_back"),
    [
        (lambda: late(loaded()), "function", "before"),
        (lambda: late(loaded(), 3), "function", "3 micro-batches ago"),
        (lambda: late(loaded()), "cell", "before"),
        (of_named_columns, "function", "before"),
    ],
    ids=["one late", "three late", "in a cell", "by name"],
)
def test_hc414_labels_of_another_batch(
    batches: Callable[[], Iterator[Batch]], how: str, n_back: str, tmp_path: Path
) -> None:
    (found,) = train(tmp_path / "run", batches(), how=how)

    assert (found.severity, found.site) == ("warning", "loss")
    assert n_back in found.why[0]


def of_both() -> Iterator[Batch]:
    """Labels of this batch, beside those of the one before."""
    for (x, y), (_, old) in zip(list(loaded())[1:], list(loaded()), strict=False):
        yield x, y, old


def computed_on_the_way() -> Iterator[Batch]:
    """Whose are they? Nobody sees that."""
    return ((x, y.astype(ms.int32) * 1) for x, y in late(loaded()))


class Remembering(nn.Cell):
    """Is given what it has made of the batch before, and trained to tell what that was."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Dense(WIDTH, WIDTH), nn.Dense(2 * WIDTH, 3)

    def construct(self, x: Any, state: Any) -> Any:
        return self.out(ops.cat((self.into(x), state), -1))


def remembered(out: Path) -> list[Finding]:
    net = Remembering()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradient = ms.value_and_grad(lambda x, s, y: ops.cross_entropy(net(x, s), y), None, optimizer.parameters)
    state, old = ops.zeros((SIZE, WIDTH), ms.float32), None
    with hypocenter.watch(net, out=str(out), audit="never"):
        for x, y in loaded():
            if old is not None:
                optimizer(gradient(x, state, old)[1])
            state, old = net.into(x), y
    return [each for each in diagnose(open_run(out)).findings if each.code == "HC414"]


@pytest.mark.parametrize("batches", [loaded, of_both, computed_on_the_way], ids=lambda each: each.__name__)
def test_labels_that_belong_to_it_or_nobody_knows(batches: Callable[[], Iterator[Batch]], tmp_path: Path) -> None:
    assert train(tmp_path / "run", batches()) == []


def test_a_task_of_remembering(tmp_path: Path) -> None:
    assert remembered(tmp_path / "run") == []
