"""A third framework through the same core: mininet's runs are recorded, checked, replayed, blamed and compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import adapter
import mininet as mn
from adapter import watch

from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Diagnosis, Finding
from hypocenter.record.reader import RecordedRun, open_run

FOLDER = Path(__file__).parent
STEPS = 6
BAD_STEP = 3


class Head(mn.Module):
    """Class scores, through what a test plants."""

    def __init__(self, draw: np.random.Generator, dtype: Any) -> None:
        self.out = mn.Linear(8, 3, draw=draw, dtype=dtype)
        self.plant: Callable[[mn.Tensor], mn.Tensor] | None = None

    def forward(self, x: mn.Tensor) -> mn.Tensor:
        scores = self.out(x)
        return scores if self.plant is None else self.plant(scores)


class Net(mn.Module):
    """Two layers and a head."""

    def __init__(self, draw: np.random.Generator, dtype: Any) -> None:
        self.body = [mn.Linear(4, 8, draw=draw, dtype=dtype), mn.Linear(8, 8, draw=draw, dtype=dtype)]
        self.head = Head(draw, dtype)

    def forward(self, x: mn.Tensor) -> mn.Tensor:
        for layer in self.body:
            x = mn.relu(layer(x))
        return self.head(x)


class Training:
    """Some steps of a small classifier.

    Args:
        plant: put into the head at step BAD_STEP, for one step or (lasting) from there on.
        optimizer: makes it of the parameters.
        accumulate: micro-batches in a step.
    """

    def __init__(
        self,
        *,
        plant: Callable[[mn.Tensor], mn.Tensor] | None = None,
        lasting: bool = False,
        dtype: Any = np.float32,
        optimizer: Callable[..., mn.Optimizer] = mn.Adam,
        accumulate: int = 1,
        steps: int = STEPS,
        **options: Any,
    ) -> None:
        draw = np.random.default_rng(7)
        self.net = Net(draw, dtype)
        self.batches = [
            (mn.Tensor(draw.standard_normal((6, 4)).astype(dtype)), mn.Tensor(draw.integers(0, 3, 6)))
            for _ in range(steps * accumulate)
        ]
        self.optimizer = optimizer(self.net.parameters(), **{"lr": 0.01, **options})
        self.plant, self.lasting, self.accumulate = plant, lasting, accumulate
        self.losses: list[float] = []

    def go(self) -> Training:
        for number in range(len(self.batches) // self.accumulate):
            is_planted = number == BAD_STEP or (self.lasting and number > BAD_STEP)
            self.net.head.plant = self.plant if is_planted else None
            for x, labels in self.batches[number * self.accumulate : (number + 1) * self.accumulate]:
                loss = mn.cross_entropy(self.net(x), labels)
                self.losses.append(loss.item())
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def bits(self) -> list[bytes]:
        return [parameter.data.tobytes() for parameter in self.net.parameters()]


def recorded(directory: Path, *, level: str = "modules", **how: Any) -> RecordedRun:
    with watch(out=str(directory), level=level):
        Training(**how).go()
    return open_run(directory)


def first(diagnosis: Diagnosis) -> Finding:
    return diagnosis.findings[0]


def evidence_of(run: RecordedRun) -> list[Evidence]:
    return [msgspec.json.decode(path.read_bytes(), type=Evidence) for _, path in run.evidence_files()]


def line_of(text: str) -> int:
    """The line of this file on which a text is that stands there only once beside this call."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line and "line_of" not in line)


# the framework itself


def every_operator(x: mn.Tensor) -> mn.Tensor:
    y = mn.sqrt(mn.exp(x) + 1.0) / (mn.relu(x) * x + 2.0) - mn.log(x * x + 1.0) @ x
    return mn.cross_entropy(y, mn.Tensor(np.array([0, 1]))) + mn.mean(mn.sum_(y * mn.neg(x), axis=0))


def test_gradients_are_those_of_differences() -> None:
    x, eps = mn.Tensor(np.random.default_rng(1).standard_normal((2, 2)), requires_grad=True), 1e-6

    every_operator(x).backward()

    assert x.grad is not None
    for at in np.ndindex(*x.shape):
        step = np.zeros(x.shape)
        step[at] = eps
        high, low = every_operator(mn.Tensor(x.data + step)), every_operator(mn.Tensor(x.data - step))
        assert x.grad[at] == pytest.approx((high.item() - low.item()) / (2 * eps), rel=1e-5, abs=1e-8)


# records


@pytest.mark.parametrize("level", ["sentinel", "modules", "ops"])
def test_a_healthy_run_is_recorded_and_called_healthy(tmp_path: Path, level: str) -> None:
    run = recorded(tmp_path / "run", level=level)

    diagnosis = diagnose(run)

    assert diagnosis.status == "healthy", diagnosis
    assert (diagnosis.n_steps, diagnosis.n_ranks) == (STEPS, 1)


@pytest.mark.parametrize("level", ["sentinel", "modules", "ops"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_bit_identical_also_where_a_step_is_replayed(tmp_path: Path, level: str, accumulate: int) -> None:
    how: dict[str, Any] = {"plant": lambda x: mn.log(x * 0.0) * 0.0 + x, "accumulate": accumulate}
    plain = Training(**how).go()

    with watch(out=str(tmp_path), level=level):
        watched = Training(**how).go()

    assert watched.bits() == plain.bits()
    np.testing.assert_array_equal(watched.losses, plain.losses)
    assert evidence_of(open_run(tmp_path))[0].reproduced


@pytest.mark.parametrize("event", ["call", "apply", "compute", "backward", "differentiate", "update"])
def test_an_adapter_that_fails_lets_go_and_training_goes_on(
    tmp_path: Path, event: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    plain = Training().go()
    monkeypatch.setattr(adapter.Session, event, broken)

    with watch(out=str(tmp_path)):
        watched = Training().go()

    assert watched.bits() == plain.bits()
    assert capfd.readouterr().err.count("switched off after an internal error") == 1


# detects, replays, blames


def log_of_nothing(scores: mn.Tensor) -> mn.Tensor:
    probabilities = mn.relu(scores - 1e3)
    return mn.log(probabilities)


@pytest.mark.parametrize("level", ["sentinel", "ops"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_log_of_zero_is_diagnosed(tmp_path: Path, level: str, accumulate: int) -> None:
    run = recorded(tmp_path / "run", plant=log_of_nothing, level=level, accumulate=accumulate)

    found = first(diagnose(run))

    assert (found.step, found.site, found.op) == (BAD_STEP, "head", "log")
    assert (found.cause, found.confidence) == ("log-of-zero", "proven")
    assert found.source is not None
    assert (found.source.file, found.source.text) == (__file__, "return mn.log(probabilities)")
    assert found.source.line == line_of("return mn.log(probabilities)")


def test_steps_after_the_failure_are_consequences(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", plant=log_of_nothing)

    assert [each.step for each in evidence_of(run)] == [BAD_STEP]
    assert {record.step for _, record in run.step_records() if record.n_bad_grads} == set(range(BAD_STEP, STEPS))


def test_a_bad_line_of_loss_code_is_named(tmp_path: Path) -> None:
    with watch(out=str(tmp_path)):
        training = Training()
        (x, labels), *_ = training.batches
        scores = training.net(x)
        loss = mn.cross_entropy(scores, labels) / mn.sum_(mn.relu(scores - 1e3))  # the planted division
        loss.backward()

    found = first(diagnose(open_run(tmp_path)))

    assert (found.site, found.phase, found.op, found.cause) == ("loss", "loss", "div", "division-by-zero")
    assert found.source is not None
    assert found.source.line == line_of("# the planted division")


def overflowing(scores: mn.Tensor) -> mn.Tensor:
    return (scores + 1.0) * (scores + 1.0) * 6e4 * 6e4 * 1e-9


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "is_bad"), [(np.float16, True), (np.float32, False)])
def test_an_overflow_of_float16_is_none_of_float32(tmp_path: Path, dtype: Any, is_bad: bool) -> None:
    run = recorded(tmp_path / "run", plant=overflowing, dtype=dtype, lr=1e-2, optimizer=mn.SGD)

    diagnosis = diagnose(run)

    if not is_bad:
        assert diagnosis.status == "healthy"
        return
    found = first(diagnosis)
    assert (found.step, found.site, found.op) == (BAD_STEP, "head", "mul")
    assert (found.cause, found.confidence, found.limit) == ("format-overflow", "proven", 65504.0)


def test_a_singularity_in_float16_is_no_overflow(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", plant=log_of_nothing, dtype=np.float16, optimizer=mn.SGD)

    assert first(diagnose(run)).cause == "log-of-zero"


def root_of_nothing(scores: mn.Tensor) -> mn.Tensor:
    return scores + mn.sqrt(mn.relu(scores - 1e3))


def test_a_gradient_that_backward_breaks_is_named(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", plant=root_of_nothing)

    found, (evidence,) = first(diagnose(run)), evidence_of(run)

    assert (found.step, found.phase, found.site, found.op) == (BAD_STEP, "backward", "head", "sqrt")
    assert found.cause == "sqrt-gradient-at-zero"
    assert evidence.forward_finite
    assert "head.out.weight" in evidence.bad_params


def test_a_bad_parameter_and_a_bad_batch_are_no_operators_fault(tmp_path: Path) -> None:
    for name in ("parameter", "batch"):
        with watch(out=str(tmp_path / name)):
            training = Training()
            broken = training.net.body[1].weight if name == "parameter" else training.batches[BAD_STEP][0]
            broken.data[2, 1] = np.nan
            training.go()

    parameter, batch = (first(diagnose(open_run(tmp_path / name))) for name in ("parameter", "batch"))

    assert (parameter.step, parameter.cause) == (0, "bad-parameter")
    assert (batch.step, batch.cause, batch.samples) == (BAD_STEP, "bad-input", (2,))


# observers of the core


@pytest.mark.parametrize(("lr", "is_lost"), [(1e-6, True), (0.5, False)])
def test_updates_that_float16_rounds_away_are_told(tmp_path: Path, lr: float, is_lost: bool) -> None:
    run = recorded(tmp_path / "run", dtype=np.float16, optimizer=mn.SGD, lr=lr, steps=40, level="sentinel")

    codes = {finding.code for finding in diagnose(run).findings}

    assert ("HC221" in codes) is is_lost, codes


@pytest.mark.parametrize(("dtype", "is_told"), [(np.float16, True), (np.float32, False)])
def test_an_eps_that_float16_rounds_to_nothing_is_told(tmp_path: Path, dtype: Any, is_told: bool) -> None:
    run = recorded(tmp_path / "run", dtype=dtype, lr=1e-3, level="sentinel", steps=3)

    assert ("HC225" in {finding.code for finding in diagnose(run).findings}) is is_told


# compares


def test_runs_that_are_the_same_are_called_so(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / name) for name in ("baseline", "candidate")]

    assert compare_runs(*runs).status == "same"


def test_the_first_site_that_differs_is_named(tmp_path: Path) -> None:
    baseline = recorded(tmp_path / "baseline")
    candidate = recorded(tmp_path / "candidate", plant=lambda scores: scores * 1.02, lasting=True)

    found = compare_runs(baseline, candidate)

    assert found.status == "diverged"
    assert found.first is not None
    assert (found.first.step, found.first.site, found.first.phase) == (BAD_STEP, "head", "forward")


# what it proves


def test_a_framework_and_its_adapter_take_less_than_a_thousand_lines() -> None:
    files = [path for path in FOLDER.glob("*.py") if not path.name.startswith("test_")]

    assert sum(len(path.read_text().splitlines()) for path in files) < 1000


def test_neither_torch_nor_mindspore_is_needed() -> None:
    code = "import sys, adapter; assert not {'torch', 'mindspore'} & set(sys.modules)"

    subprocess.run([sys.executable, "-c", code], cwd=FOLDER, check=True)
