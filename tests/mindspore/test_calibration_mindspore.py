"""`--calibrate` in MindSpore programs: rows of replays in which every sum is off by a rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.replay.mindspore.calibration import adds_up

Rows = dict[tuple[Any, ...], Any]


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Block(nn.Cell):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm((width,)), nn.Dense(width, 2 * width), nn.Dense(2 * width, width)
        self.drop = nn.Dropout(p=dropout)

    def construct(self, x: Any) -> Any:
        return x + self.drop(self.down(ops.gelu(self.up(self.norm(x)))))


class Net(nn.Cell):
    def __init__(self, dropout: float = 0.0, width: int = 16, n_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.blocks = nn.CellList([Block(width, dropout) for _ in range(n_layers)])
        self.head = nn.Dense(width, 32)

    def construct(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(
    folder: Path | None, *, n_steps: int = 3, n_micro: int = 1, clip: float | None = None, graph: bool = False,
    dropout: float = 0.0, kind: Any = nn.AdamWeightDecay, **options: Any,
) -> list[np.ndarray[Any, Any]]:  # fmt: skip
    """Losses, and parameters at the end."""
    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE)
    ms.set_seed(0)
    ms.manual_seed(0)
    net = Net(dropout)
    net.set_train()
    optimizer = kind(net.trainable_params(), 1e-2)

    def forward(tokens: Any) -> Any:
        return ops.cross_entropy(net(tokens).reshape(-1, 32), tokens.reshape(-1)) / n_micro

    differentiated = ms.value_and_grad(forward, None, optimizer.parameters)
    draw, losses = np.random.default_rng(0), list[Any]()
    with hypocenter.watch(out=str(folder), **options) if folder else contextlib.nullcontext():
        for _ in range(n_steps):
            sums: Any = None
            for _ in range(n_micro):
                loss, gradients = differentiated(ms.Tensor(draw.integers(0, 32, (4, 8)).astype(np.int32)))
                sums = gradients if sums is None else tuple(a + b for a, b in zip(sums, gradients, strict=True))
                losses.append(loss.asnumpy())
            optimizer(ops.clip_by_global_norm(sums, clip) if clip else sums)
    return [*losses, *(p.asnumpy().copy() for p in (*net.get_parameters(), *optimizer.get_parameters()))]


MODULES = {"level": "modules", "sketch": True, "param_schedule": "every=1", "calibrate": "0"}


def rows_of(folder: Path) -> tuple[Rows, dict[tuple[Any, ...], Rows]]:
    """(rows of the run, rows of samples) by where they were observed."""
    run: Rows = {}
    samples: dict[tuple[Any, ...], Rows] = {}
    for row in open_run(folder).readings():
        key = (row.step, row.microbatch, row.phase, row.site, row.port, row.call)
        if row.op.startswith("calibrate["):
            assert row.replay
            samples.setdefault(key, {})[row.op] = row
        elif not row.replay:
            run[key] = row
    return run, samples


def distance(a: Any, b: Any) -> float:
    a, b = (np.array(row.summary.sketch or (row.summary.sum,), np.float64) for row in (a, b))
    return float(np.linalg.norm(a - b) / np.linalg.norm(a)) if np.linalg.norm(a) else float(np.linalg.norm(b))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.AdamWeightDecay, {"n_steps": 2}),
        pytest.param(nn.AdamWeightDecay, {"n_steps": 2}, marks=pytest.mark.queues),
        (nn.Adam, {"n_micro": 2, "clip": 0.1}),
        (nn.AdamWeightDecay, {"dropout": 0.1}),
    ],
)
def test_training_is_the_same_to_the_bit(tmp_path: Path, options: dict[str, Any], kind: Any) -> None:
    plain = train(None, kind=kind, **options)

    calibrated = train(tmp_path / "run", kind=kind, **options, **{**MODULES, "calibrate": "every=1"})

    assert all(np.array_equal(a, b) for a, b in zip(plain, calibrated, strict=True))


def test_every_row_of_the_step_has_three_others_a_few_roundings_away(tmp_path: Path) -> None:
    train(tmp_path / "run", n_steps=1, n_micro=2, clip=0.1, **MODULES)

    run, samples = rows_of(tmp_path / "run")

    phases = ("forward", "backward", "loss", "grad")
    wanted = {key for key in run if key[0] == 0 and key[2] in phases}
    assert wanted == {key for key in samples if key[0] == 0}
    assert all(len(found) == 3 for found in samples.values())
    for key in wanted:
        far = max(distance(run[key], row) for row in samples[key].values())
        assert far < 2.0**-18, key
        if key[2] in ("backward", "grad") and key[4] != "value" and "embedding" not in key[3]:
            assert far > 2.0**-25, key


@pytest.mark.night
def test_gradients_are_those_that_the_optimizer_gets(tmp_path: Path) -> None:
    train(tmp_path / "run", n_micro=3, clip=1e-3, **MODULES)

    run, samples = rows_of(tmp_path / "run")

    norms = {key: row for key, row in run.items() if key[0] == 0 and key[4] == "grad"}
    assert len(norms) == len(list(Net().get_parameters()))
    for key, row in norms.items():
        for sample in samples[key].values():
            assert sample.summary.sumsq == pytest.approx(row.summary.sumsq, rel=1e-4, abs=1e-20)
    total = run[0, 0, "grad", "grad_norm", "value", 0].summary.sum
    for sample in samples[0, 0, "grad", "grad_norm", "value", 0].values():
        assert sample.summary.sum == pytest.approx(total, rel=1e-4)
        assert sample.summary.sum != total


@pytest.mark.night
def test_parameters_of_the_next_step_have_a_floor(tmp_path: Path) -> None:
    train(tmp_path / "run", n_steps=2, **MODULES)

    run, samples = rows_of(tmp_path / "run")

    values = [key for key in samples if key[2] == "param"]
    assert {key[0] for key in values} == {1}
    assert {key[3] for key in values} == {p.name for p in Net().get_parameters()}
    for key in values:
        assert all(distance(run[key], row) < 1e-3 for row in samples[key].values())
    assert any(distance(run[key], row) > 0 for key in values for row in samples[key].values())
    assert {key[2] for key in samples if key[0] == 1} == {"param", "optimizer"}


@pytest.mark.night
def test_steps_in_a_row_drift_apart_as_runs_do(tmp_path: Path) -> None:
    train(tmp_path / "run", n_steps=3, **{**MODULES, "calibrate": "every=1"})

    run, samples = rows_of(tmp_path / "run")

    far = [
        np.median([max(distance(run[key], row) for row in found.values()) for key, found in samples.items()
                   if key[0] == step and key[2] == "grad" and key[4] == "grad"])
        for step in range(3)
    ]  # fmt: skip
    assert far[0] < far[1]
    assert far[2] < 1e-2


@pytest.mark.night
def test_a_graph_has_none_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", graph=True, calibrate="0")

    assert rows_of(tmp_path / "run")[1] == {}
    assert "no noise floor was measured at step 0: the step ran as a compiled graph" in capsys.readouterr().err


def test_what_dropout_drops_cannot_be_dropped_again_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", dropout=0.1, **MODULES)

    assert rows_of(tmp_path / "run")[1] == {}
    said = capsys.readouterr().err
    assert "no noise floor was measured at step 0: MindSpore cannot draw the same values again (--no-dropout" in said


@pytest.mark.night
def test_nothing_is_measured_unasked(tmp_path: Path) -> None:
    train(tmp_path / "run", **{**MODULES, "calibrate": "never"})

    assert rows_of(tmp_path / "run")[1] == {}


ADD_UP = [
    "MatMul", "LayerNorm", "LayerNormGrad", "SumExt", "ReduceMean", "Softmax", "BiasAddGrad", "CrossEntropy", "Conv2D",
    "GatherDGradV2", "FlashAttentionScore", "BatchMatMul", "MatMulExt", "RmsNorm",
]  # fmt: skip
DO_NOT = [
    "Add", "Mul", "ReLU", "Gather", "Reshape", "ReduceMax", "MaxPool", "Assign", "Cast", "StandardNormal", "Dropout",
    "BiasAdd", "GeLU", "Equal", "MaskedFill",
]  # fmt: skip


@pytest.mark.parametrize("name", ADD_UP)
def test_operators_that_add_up(name: str) -> None:
    assert adds_up(name)


@pytest.mark.parametrize("name", DO_NOT)
def test_operators_that_do_not(name: str) -> None:
    assert not adds_up(name)
