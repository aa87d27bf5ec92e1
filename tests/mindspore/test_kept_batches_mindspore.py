"""`save_batches` in MindSpore programs: the batches of the first steps, with the tokens that the loss asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import hypocenter
from hypocenter.checklist.data.side import side_of
from hypocenter.compare.values.tensor_file import open_tensor_file
from hypocenter.record.reader import open_run

VOCABULARY, LENGTH = 24, 10


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Reader(nn.Cell):
    """The smallest language model; how it gets its logits is up to `tied`."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.tied = tied
        if not tied:
            self.head = nn.Dense(8, VOCABULARY, has_bias=False)

    def construct(self, ids: Any) -> Any:
        hidden = self.embedding(ids)
        return ops.matmul(hidden, self.embedding.embedding_table.T) if self.tied else self.head(hidden)


def batch(step: int, ahead: int) -> tuple[Any, Any]:
    """Ids and labels; the loss at t asks for the token at t + ahead, and for none of the token 0."""
    ids = np.random.default_rng(step).integers(0, VOCABULARY, (3, LENGTH)).astype(np.int32)
    labels = np.full_like(ids, -100)
    labels[:, :-ahead] = np.where(ids[:, ahead:] == 0, -100, ids[:, ahead:])
    return ms.Tensor(ids), ms.Tensor(labels)


def train(out: Path | None, *, ahead: int = 1, tied: bool = False, n_saved: int = 1, how: str = "function") -> Reader:
    """Two steps."""
    ms.set_seed(0)
    net = Reader(tied)
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), 0.1)

    def loss_of(logits: Any, labels: Any) -> Any:
        return ops.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=-100)

    def forward(ids: Any, labels: Any) -> Any:
        return loss_of(net(ids), labels)

    def go() -> None:
        differentiated = ms.value_and_grad(forward, None, optimizer.parameters)
        whole = nn.TrainOneStepCell(nn.WithLossCell(net, loss_of), optimizer)
        whole.set_train()
        for step in range(2):
            if how == "cell":
                whole(*batch(step, ahead))
            else:
                optimizer(differentiated(*batch(step, ahead))[1])

    if out is None:
        go()
    else:
        with hypocenter.watch(net, optimizer, out=str(out), save_batches=n_saved):
            go()
    return net


def kept_in(run: Path) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    files = sorted(run.glob("rank-00000/batches/*/*"))
    return {
        f"{path.parent.name}/{path.name}": {n: stored.raw for n, stored in open_tensor_file(path).tensors.items()}
        for path in files
    }


@pytest.mark.slow
@pytest.mark.parametrize("how", ["function", "cell"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
def test_targets_are_what_the_loss_asks_for(tmp_path: Path, ahead: int, tied: bool, how: str) -> None:
    train(tmp_path / "run", ahead=ahead, tied=tied, how=how)

    kept = kept_in(tmp_path / "run")
    assert list(kept) == ["step-000000/mb-0.safetensors"]
    (found,) = kept.values()
    ids, labels = (tensor.asnumpy() for tensor in batch(0, ahead))
    assert set(found) == {"model|in[0]", "loss|[0]", "target"}
    assert np.array_equal(found["model|in[0]"], ids)
    assert np.array_equal(found["loss|[0]"], labels)
    assert np.array_equal(found["target"], np.where(labels == -100, -1, labels))


@pytest.mark.night
def test_the_checklist_reads_them(tmp_path: Path) -> None:
    train(tmp_path / "run", n_saved=2)

    side = side_of("candidate", open_run(tmp_path / "run"))

    assert [b.step for b in side.batches] == [0, 1]
    assert side.problems == ()
    ids, labels = (tensor.asnumpy() for tensor in batch(1, 1))
    assert np.array_equal(side.batches[1].ids, ids)
    assert np.array_equal(side.batches[1].labels, labels)
    assert side.vocabulary == VOCABULARY


@pytest.mark.slow
@pytest.mark.parametrize("how", ["function", "cell"])
def test_of_a_graph_the_arguments_are_kept_and_that_is_said(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)

    train(tmp_path / "run", how=how)

    (found,) = kept_in(tmp_path / "run").values()
    ids, labels = (tensor.asnumpy() for tensor in batch(0, 1))
    assert set(found) == {"model|in[0]", "loss|[0]"}
    assert np.array_equal(found["model|in[0]"], ids)
    assert np.array_equal(found["loss|[0]"], labels)
    assert "which tokens the loss asks for is not kept: it is not seen in a compiled graph" in capsys.readouterr().err


@pytest.mark.queues
def test_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    plain = train(None)

    kept = train(tmp_path / "run", n_saved=2)

    pairs = zip(plain.get_parameters(), kept.get_parameters(), strict=True)
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in pairs)


def test_nothing_is_kept_unasked(tmp_path: Path) -> None:
    train(tmp_path / "run", n_saved=0)

    assert kept_in(tmp_path / "run") == {}
