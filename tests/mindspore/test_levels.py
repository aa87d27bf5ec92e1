"""Levels modules and tensors of a whole session: what is recorded, in the files of torch's, and training untouched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import hypocenter
from hypocenter.compare.updates.recompute import recompute
from hypocenter.compare.values.tensor_file import open_tensor_file
from hypocenter.nouns import Reading
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.summary.reducers.numpy import summarize

sys.path.insert(0, str(Path(__file__).parent))
from gpt_like import Net, WithLoss, batches, seeded, values_of  # isort: skip


def with_function(model: nn.Cell, optimizer: Any, data: list[Any]) -> None:
    grad = ms.value_and_grad(model, None, list(optimizer.parameters))
    for batch in data:
        _, gradients = grad(*batch)
        optimizer(gradients)


def with_cell(model: nn.Cell, optimizer: Any, data: list[Any]) -> None:
    step = nn.TrainOneStepCell(model, optimizer)
    step.set_train()
    for batch in data:
        step(*batch)


def accumulating(model: nn.Cell, optimizer: Any, data: list[Any]) -> None:
    grad = ms.value_and_grad(model, None, list(optimizer.parameters))
    for first, second in zip(data[::2], data[1::2], strict=True):
        _, one = grad(*first)
        _, two = grad(*second)
        optimizer(tuple(a + b for a, b in zip(one, two, strict=True)))


def trained(
    folder: Path | None, *, how: Callable[..., None] = with_function, n: int = 2, make: Any = None, **options: Any
) -> tuple[list[np.ndarray], RecordedRun | None]:
    """Parameters after some steps, and the recording when there is a folder for it."""
    ms.set_seed(1)
    model = seeded(lambda: WithLoss(Net()))
    optimizer = (make or (lambda p: nn.Adam(p, 0.01)))(model.trainable_params())
    if folder is None:
        how(model, optimizer, batches(n))
        return values_of(optimizer.parameters), None
    with hypocenter.watch(model, out=str(folder), **options):
        how(model, optimizer, batches(n))
    return values_of(optimizer.parameters), open_run(folder)


def find(run: RecordedRun | None, **where: Any) -> list[Reading]:
    assert run is not None
    return list(run.readings(**where))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "level"),
    [
        *((how, level) for how in (with_function, with_cell, accumulating) for level in ("modules", "tensors")),
        pytest.param(with_function, "ops", marks=pytest.mark.queues),
        (with_cell, "ops"),
        (accumulating, "ops"),
    ],
)
def test_parameters_come_out_the_same_to_the_bit(level: str, how: Callable[..., None], tmp_path: Path) -> None:
    without, _ = trained(None, how=how)
    with_it, run = trained(tmp_path / "run", how=how, level=level, sketch=True, param_schedule="every=1")

    assert all(np.array_equal(a, b) for a, b in zip(without, with_it, strict=True))
    assert run is not None
    n_steps = 1 if how is accumulating else 2
    assert [record.step for _, record in run.step_records()] == list(range(n_steps))
    assert {r.phase for r in find(run)} >= {"forward", "backward", "param", "grad", "optimizer", "loss"}
    assert {r.microbatch for r in find(run, phase="forward")} == ({0, 1} if how is accumulating else {0})


def test_cells_parameters_and_state_have_the_names_of_the_model(tmp_path: Path) -> None:
    _, run = trained(tmp_path / "run", level="modules", param_schedule="every=1", histogram="full", sketch=True)

    name = "net.blocks.1.attention.qkv"
    (output,) = [r for r in find(run, phase="forward", site=name, steps=[1]) if r.port == "out[0]"]
    assert (output.module, output.shape, output.call) == ("Dense", (2, 6, 48), 0)
    assert output.summary.n_hist == output.summary.n
    assert output.summary.sketch is not None
    assert {r.port for r in find(run, site=f"{name}.weight", steps=[1])} == {
        "value", "grad", "exp_avg", "exp_avg_sq", "step",
    }  # fmt: skip
    norm = find(run, site="net.norm.gamma", phase="param", steps=[0])[0]
    assert (norm.module, norm.shape, norm.port) == ("LayerNorm", (16,), "value")


@pytest.mark.night
def test_schedules_choose_the_steps(tmp_path: Path) -> None:
    _, run = trained(tmp_path / "run", n=4, level="modules", schedule="1,3", param_schedule="2")

    assert {r.step for r in find(run, phase="forward")} == {1, 3}
    assert {r.step for r in find(run, phase="param")} == {2}


def test_a_batch_can_be_traced_at_level_sentinel(tmp_path: Path) -> None:
    _, run = trained(tmp_path / "run", n=3, trace_batches=(1,))

    assert {r.step for r in find(run, phase="forward")} == {1}


def test_tensors_are_the_values_that_were_summarised(tmp_path: Path) -> None:
    _, run = trained(tmp_path / "run", level="tensors", param_schedule="every=1", histogram="full")

    folders = sorted((tmp_path / "run").glob("rank-*/tensors/step-000001/mb-0"))
    assert len(folders) == 1
    files = {path.stem: open_tensor_file(path) for path in folders[0].glob("*.safetensors")}
    assert "net.blocks.0.attention.qkv" in files
    n_checked = 0
    for site, file in files.items():
        name = "" if site == "(root)" else site
        for key, stored in file.tensors.items():
            port, _, call = key.partition("#")
            rows = [r for r in find(run, site=name, steps=[1]) if r.port == port and r.call == int(call or 0)]
            if rows:
                assert rows[0].dtype == stored.dtype
                assert rows[0].summary == summarize(np.ascontiguousarray(stored.raw))
                n_checked += 1
    assert n_checked > 100
    held = files["net.norm"].tensors
    assert {"gamma", "beta", "gamma.grad", "beta.grad", "in[0]", "out[0]", "grad_in[0]", "grad_out[0]"} <= set(held)
    (gradient,) = find(run, site="net.norm.gamma", phase="grad", steps=[1])
    assert gradient.summary == summarize(np.ascontiguousarray(held["gamma.grad"].raw))


@pytest.mark.slow
@pytest.mark.parametrize("how", [with_function, with_cell])
def test_the_optimizers_step_can_be_done_again(how: Callable[..., None], tmp_path: Path) -> None:
    _, run = trained(
        tmp_path / "run", how=how, level="tensors", make=lambda p: nn.AdamWeightDecay(p, 0.01), param_schedule="every=1"
    )
    assert run is not None

    rows = recompute(run, 1)

    assert {row.name for row in rows} == {r.site for r in find(run, phase="param", steps=[1])}
    assert {row.verdict for row in rows} == {"as-stated"}


class Probed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        x = hypocenter.probe(self.inner(x), "after inner")
        return hypocenter.probe({"twice": x * 2.0}, "doubled")["twice"].sum()


class Outer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.probed = Probed()

    def construct(self, x: Tensor) -> Tensor:
        return self.probed(x)


def test_a_probe_has_a_site_of_its_own_with_its_gradient(tmp_path: Path) -> None:
    model = seeded(Outer)
    optimizer = nn.SGD(model.trainable_params(), 0.1)

    with hypocenter.watch(model, out=str(tmp_path / "run")):
        with_function(model, optimizer, [(Tensor(np.ones((2, 4), np.float32)),)])

    run = open_run(tmp_path / "run")
    (value,) = find(run, site="probed.after inner", phase="forward")
    (gradient,) = find(run, site="probed.after inner", phase="backward")
    (doubled,) = find(run, site="probed.doubled", phase="backward")
    assert (value.port, value.module, value.shape) == ("probe", "Probed", (2, 4))
    assert (gradient.port, gradient.summary.min, gradient.summary.max) == ("grad_probe", 2.0, 2.0)
    assert (doubled.port, doubled.summary.max) == ("grad_probe[twice]", 1.0)


def test_a_probe_without_a_session_gives_its_value_back() -> None:
    x = Tensor(np.ones(3, np.float32))

    assert hypocenter.probe(x, "here") is x


def test_a_tap_that_fails_says_so_once_and_training_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hypocenter.summary.reducers.mindspore import MindSporeReducer

    def fails(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    without, _ = trained(None)
    monkeypatch.setattr(MindSporeReducer, "mark", fails)
    with_it, run = trained(tmp_path / "run", level="modules", n=2)

    assert all(np.array_equal(a, b) for a, b in zip(without, with_it, strict=True))
    assert run is not None
    assert sum("broken on purpose" in warning for warning in run.run.warnings) == 1
    assert not find(run, phase="forward")
    assert [record.step for _, record in run.step_records()] == [0, 1]
