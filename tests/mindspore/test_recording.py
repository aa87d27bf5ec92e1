"""Whole sessions on small MindSpore programs: every way of training is seen, and left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset
import numpy as np
import pytest
from mindspore import Tensor, amp, nn, ops
from mindspore.experimental import optim as experimental

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import StepRecord
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.session.mindspore.failures import Failures
from hypocenter.session.mindspore.levels import Levels
from hypocenter.session.mindspore.sentinel import Sentinel

STEPS = 4
SEED = 3


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Dense(4, 8), nn.LayerNorm((8,))
        self.drop, self.head = nn.Dropout(p=0.3), nn.Dense(8, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.drop(ops.gelu(self.norm(self.first(x)))))


class Training:
    """One program: what it computed, and its own idea of what it did."""

    def __init__(self, make_optimizer: Callable[[Any], Any] | None = None) -> None:
        ms.set_seed(SEED)
        rng = np.random.default_rng(SEED)
        self.data = [
            (Tensor(rng.standard_normal((5, 4)).astype(np.float32)), Tensor(rng.standard_normal((5, 2)).astype("f4")))
            for _ in range(2 * STEPS)
        ]
        self.net, self.loss_fn = Net(), nn.MSELoss()
        self.net.set_train()
        make = make_optimizer or (lambda parameters: nn.AdamWeightDecay(parameters, learning_rate=0.01))
        self.optimizer = make(self.net.trainable_params())
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.n_micro = 1

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss_fn(self.net(x), y)

    def keep(self, loss: Any, gradients: Any = ()) -> None:
        self.losses.append(float(loss.asnumpy()))
        self.norms.append(math.sqrt(sum(float((g.asnumpy().astype(np.float64) ** 2).sum()) for g in gradients)))

    def weights(self) -> list[bytes]:
        return [p.asnumpy().tobytes() for p in self.net.get_parameters()]


def functional(t: Training) -> None:
    differentiated = ms.value_and_grad(t.forward, None, t.optimizer.parameters)
    for x, y in t.data[:STEPS]:
        loss, gradients = differentiated(x, y)
        t.optimizer(gradients)
        t.keep(loss, gradients)


def with_aux(t: Training) -> None:
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = t.net(x)
        return t.loss_fn(logits, y), logits

    differentiated = ms.value_and_grad(forward, None, t.optimizer.parameters, has_aux=True)
    for x, y in t.data[:STEPS]:
        (loss, _), gradients = differentiated(x, y)
        t.optimizer(gradients)
        t.keep(loss, gradients)


def grad_alone(t: Training) -> None:
    """The program never sees its loss; `t.losses` does through a global of its own."""
    seen: list[Tensor] = []

    def forward(x: Tensor, y: Tensor) -> Tensor:
        seen.append(t.forward(x, y))
        return seen[-1]

    differentiated = ms.grad(forward, None, t.optimizer.parameters)
    for x, y in t.data[:STEPS]:
        gradients = differentiated(x, y)
        t.optimizer(gradients)
        t.keep(seen[-1], gradients)


def inputs_and_parameters(t: Training) -> None:
    differentiated = ms.value_and_grad(t.forward, 0, t.optimizer.parameters)
    for x, y in t.data[:STEPS]:
        loss, (_, gradients) = differentiated(x, y)
        t.optimizer(gradients)
        t.keep(loss, gradients)


def grad_operation(t: Training) -> None:
    whole = nn.WithLossCell(t.net, t.loss_fn)
    differentiate = ops.GradOperation(get_by_list=True)
    for x, y in t.data[:STEPS]:
        t.optimizer(differentiate(whole, t.optimizer.parameters)(x, y))


def train_one_step(t: Training) -> None:
    step = nn.TrainOneStepCell(nn.WithLossCell(t.net, t.loss_fn), t.optimizer, return_grad=True)
    step.set_train()
    for x, y in t.data[:STEPS]:
        loss, gradients = step(x, y)
        t.keep(loss, gradients.values())


class OwnStep(nn.Cell):
    """A training cell as programs write it themselves."""

    def __init__(self, network: Any, loss_fn: Any, optimizer: Any) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self.differentiated = ms.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss_fn(self.network(x), y)

    def construct(self, x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
        loss, gradients = self.differentiated(x, y)
        self.optimizer(gradients)
        return loss, gradients


def own_step(t: Training) -> None:
    step = OwnStep(t.net, t.loss_fn, t.optimizer)
    for x, y in t.data[:STEPS]:
        t.keep(*step(x, y))


def model_train(t: Training) -> None:
    rows = [(x.asnumpy(), y.asnumpy()) for x, y in t.data[:STEPS]]
    source = mindspore.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False)
    ms.Model(t.net, t.loss_fn, t.optimizer).train(1, source, dataset_sink_mode=False)


def accumulated(t: Training) -> None:
    """Without dropout: MindSpore 2.10 draws other masks from run to run when no value is read between two calls."""
    t.n_micro, t.net.drop = 2, nn.Identity()
    differentiated = ms.value_and_grad(t.forward, None, t.optimizer.parameters)
    for step in range(STEPS):
        (first, a), (second, b) = (differentiated(*t.data[2 * step + i]) for i in range(2))
        gradients = tuple((p + q) / 2 for p, q in zip(a, b, strict=True))
        t.optimizer(gradients)
        t.keep((first + second) / 2, gradients)


def clipped(t: Training) -> None:
    differentiated = ms.value_and_grad(t.forward, None, t.optimizer.parameters)
    for x, y in t.data[:STEPS]:
        loss, gradients = differentiated(x, y)
        t.optimizer(ops.clip_by_global_norm(gradients, 0.01))
        t.keep(loss, gradients)


def compiled_step(t: Training) -> None:
    differentiated = ms.value_and_grad(t.forward, None, t.optimizer.parameters)

    @ms.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss, gradients = differentiated(x, y)
        return ops.depend(loss, t.optimizer(gradients))

    for x, y in t.data[:STEPS]:
        t.keep(step(x, y))


STYLES = [
    functional, with_aux, grad_alone, inputs_and_parameters, grad_operation, train_one_step, own_step, model_train,
    accumulated, clipped,
]  # fmt: skip
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Momentum": lambda p: nn.Momentum(p, learning_rate=0.01, momentum=0.9),
    "Adam": lambda p: nn.Adam(p, learning_rate=0.01),
    "SGD": lambda p: nn.SGD(p, learning_rate=0.01, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, learning_rate=0.01),
    "experimental.AdamW": lambda p: experimental.AdamW(p, lr=0.01),
    "experimental.SGD": lambda p: experimental.SGD(p, lr=0.01, momentum=0.9),
}


@pytest.fixture(autouse=True)
def _pynative() -> Any:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def recorded(out: Path, style: Callable[[Training], None], make: Any = None, **options: Any) -> tuple[Training, Any]:
    """A program trained under a session, and its recording."""
    training = Training(make)
    with hypocenter.watch(out=out, **options):
        style(training)
    return training, open_run(out)


def records(run: RecordedRun) -> list[StepRecord]:
    return [record for _, record in run.step_records()]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
def test_every_way_of_training_is_seen(tmp_path: Path, style: Any) -> None:
    training, run = recorded(tmp_path / "run", style)

    steps = records(run)
    assert [step.step for step in steps] == list(range(STEPS))
    assert {step.n_microbatches for step in steps} == {training.n_micro}
    assert {step.lr for step in steps} == {0.01}
    assert not any(step.skipped or step.n_bad_grads or step.finding for step in steps)
    if training.losses:
        np.testing.assert_allclose([step.loss for step in steps], training.losses, rtol=1e-6)
        np.testing.assert_allclose([step.grad_norm for step in steps], training.norms, rtol=1e-5)
    rows = [row for row in run.readings() if row.port == "grad"]
    assert {row.site for row in rows} == {p.name for p in training.net.trainable_params()}
    assert {row.summary.n for row in rows if row.site == "first.weight"} == {32}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_kind_of_optimizer_is_seen(tmp_path: Path, name: str) -> None:
    training, run = recorded(tmp_path / "run", functional, OPTIMIZERS[name])

    assert [step.lr for step in records(run)] == [0.01] * STEPS
    (facts,) = run.facts().optimizers
    assert facts.kind == name.rpartition(".")[2]
    assert facts.groups[0].options["lr"] == 0.01
    named = [name for group in facts.groups for name in group.parameters]
    assert sorted(named) == sorted(p.name for p in training.net.trainable_params())


QUEUED = (functional, train_one_step, own_step, accumulated)  # a program's queues, at four times the CPU
NOT_COMPILED = (grad_alone, own_step)  # not programs that MindSpore can compile
WAYS = [
    *(pytest.param("pynative", style, marks=[pytest.mark.queues] if style in QUEUED else []) for style in STYLES),
    ("pynative", compiled_step),
    *(("graph", style) for style in (*STYLES, compiled_step) if style not in NOT_COMPILED),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "style"), WAYS)
def test_training_is_bit_identical(tmp_path: Path, mode: str, style: Any) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    plain = Training()
    style(plain)

    watched, run = recorded(tmp_path / "run", style)

    assert watched.losses == plain.losses
    assert watched.weights() == plain.weights()
    assert [step.step for step in records(run)] == list(range(STEPS))


def test_a_compiled_step_tells_its_loss_and_says_what_is_missing(tmp_path: Path, capfd: Any) -> None:
    training, run = recorded(tmp_path / "run", compiled_step)

    steps = records(run)
    np.testing.assert_allclose([step.loss for step in steps], training.losses)
    assert {step.grad_norm for step in steps} == {None}
    assert capfd.readouterr().err.count("compiled graphs") == 1


def test_parameters_that_an_optimizer_leaves_out_of_weight_decay_have_none(tmp_path: Path) -> None:
    _, run = recorded(tmp_path / "run", functional, lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1))

    groups = run.facts().optimizers[0].groups
    assert {tuple(group.parameters): group.options["weight_decay"] for group in groups} == {
        ("first.weight", "first.bias", "head.weight", "head.bias"): 0.1, ("norm.gamma", "norm.beta"): 0.0,
    }  # fmt: skip  # nn.Optimizer leaves out what is called beta or gamma


@pytest.mark.night
def test_a_schedule_and_groups_of_parameters(tmp_path: Path) -> None:
    def make(parameters: Any) -> Any:
        decayed = [p for p in parameters if p.name.endswith("weight")]
        other = [p for p in parameters if not p.name.endswith("weight")]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
        return nn.AdamWeightDecay(groups, learning_rate=nn.PolynomialDecayLR(0.1, 0.01, 3, 1.0), beta2=0.95)

    _, run = recorded(tmp_path / "run", functional, make)

    np.testing.assert_allclose([step.lr for step in records(run)], [0.1, 0.07, 0.04, 0.01], rtol=1e-6)
    groups = run.facts().optimizers[0].groups
    assert [group.options["weight_decay"] for group in groups] == [0.1, 0.0]
    assert groups[0].options["betas"] == [0.9, 0.95]
    assert groups[0].options["eps"] == 1e-6
    assert [set(group.parameters) for group in groups] == [
        {"first.weight", "head.weight"}, {"first.bias", "norm.gamma", "norm.beta", "head.bias"},
    ]  # fmt: skip


def test_facts_of_cells(tmp_path: Path) -> None:
    _, run = recorded(tmp_path / "run", functional)

    facts = run.facts()
    cells = {cell.path: cell for cell in facts.modules}
    assert cells[""].kind == "Net"
    assert cells["norm"].kind == "LayerNorm"
    assert cells["norm"].attributes["epsilon"] == 1e-7
    assert cells["drop"].attributes["p"] == 0.3
    assert cells["first"].parameters["weight"].shape == (8, 4)
    assert cells["first"].parameters["weight"].dtype == "float32"
    assert cells["first"].parameters["weight"].trained
    assert facts.settings["mode"] == "PYNATIVE"
    assert facts.settings["device"] == "cpu"
    assert run.run.versions["mindspore"] == ms.__version__


class Rooted(nn.Cell):
    """|x|, whose gradient at 0 is NaN."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.sqrt(x * x)


def planted(t: Training) -> None:
    """At step 2 all inputs are 0: the loss is finite, the gradients below the root are not."""
    t.net.first, t.net.norm = nn.Dense(4, 8, has_bias=False), Rooted()
    t.optimizer = nn.SGD(t.net.trainable_params(), learning_rate=0.01)
    x, y = t.data[2]
    t.data[2] = ops.zeros_like(x), y
    functional(t)


def test_step_and_parameters_of_a_nan_in_a_gradient(tmp_path: Path) -> None:
    _, run = recorded(tmp_path / "run", planted)

    assert [step.n_bad_grads for step in records(run)] == [0, 0, 1, 3]
    assert [bool(step.finding) for step in records(run)] == [False, False, True, False]
    found = diagnose(run)
    assert found.status == "findings"
    assert (found.findings[0].step, found.findings[0].severity) == (2, "error")
    assert found.findings[0].site == "norm"
    assert found.findings[0].op is not None
    assert found.findings[0].cause == "sqrt-gradient-at-zero"


def test_an_update_that_breaks_a_parameter(tmp_path: Path) -> None:
    def too_fast(t: Training) -> None:
        x, y = t.data[0]
        t.data[0] = x, y * 1e4
        functional(t)

    _, run = recorded(tmp_path / "run", too_fast, lambda p: nn.SGD(p, learning_rate=3e38))

    first = diagnose(run).findings[0]
    assert (first.code, first.step, first.phase) == ("HC103", 0, "optimizer")
    assert first.site in {p.name for p in Training().net.trainable_params()}


@pytest.mark.night
def test_a_failure_leaves_training_alone(tmp_path: Path) -> None:
    plain = Training()
    planted(plain)

    watched, _ = recorded(tmp_path / "run", planted)

    assert str(watched.losses) == str(plain.losses)
    assert watched.weights() == plain.weights()


@pytest.mark.night
def test_an_update_that_is_refused(tmp_path: Path) -> None:
    _, run = recorded(tmp_path / "run", planted, on_finding="skip")

    assert [step.skipped for step in records(run)] == [False, False, True, False]
    assert [step.n_bad_grads for step in records(run)] == [0, 0, 1, 0]


def test_a_stop_at_a_finding(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        recorded(tmp_path / "run", planted, on_finding="stop")

    assert ended.value.code == 1
    assert [step.step for step in records(open_run(tmp_path / "run"))] == [0, 1, 2]


def scaled(t: Training, *, overflow_at: int = 2, window: int = 2) -> None:
    scaler = amp.DynamicLossScaler(2.0**10, 2, window)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return scaler.scale(t.forward(x, y))

    differentiated = ms.value_and_grad(forward, None, t.optimizer.parameters)
    for i, (x, y) in enumerate(t.data[: STEPS + 1]):
        loss, gradients = differentiated(x * (float("inf") if i == overflow_at else 1.0), y)
        finite = amp.all_finite(gradients)
        if finite:
            gradients = scaler.unscale(gradients)
            t.optimizer(gradients)
        t.keep(scaler.unscale(loss), gradients)
        scaler.adjust(finite)


def test_dynamic_loss_scaling(tmp_path: Path) -> None:
    training, run = recorded(tmp_path / "run", scaled)

    steps = records(run)
    assert [step.skipped for step in steps] == [False, False, True, False, False]
    assert [step.loss_scale for step in steps] == [1024.0, 1024.0, 2048.0, 1024.0, 1024.0]
    fine = [i for i in range(5) if i != 2]
    np.testing.assert_allclose([steps[i].loss for i in fine], [training.losses[i] for i in fine], rtol=1e-6)
    np.testing.assert_allclose([steps[i].grad_norm for i in fine], [training.norms[i] for i in fine], rtol=1e-5)
    assert steps[2].n_bad_grads > 0
    kinds = {row.module for row in run.readings() if row.site == "loss_scale"}
    assert kinds == {"DynamicLossScaler"}


class Detected(nn.TrainOneStepWithLossScaleCell):
    """With a check for overflow that the CPU has: the library's own asks a register of Ascend's."""

    def get_overflow_status(self, status: Any, compute_output: Any) -> Any:
        return ops.logical_not(amp.all_finite(compute_output))


@pytest.mark.night
def test_a_manager_of_loss_scale(tmp_path: Path) -> None:
    def managed(t: Training) -> None:
        manager = nn.DynamicLossScaleUpdateCell(2.0**8, 2, 100)
        step = Detected(nn.WithLossCell(t.net, t.loss_fn), t.optimizer, manager)
        step.set_train()
        for i, (x, y) in enumerate(t.data[:STEPS]):
            loss, *_ = step(x * (float("inf") if i == 1 else 1.0), y)
            t.keep(loss)

    training, run = recorded(tmp_path / "run", managed)

    steps = records(run)
    assert [step.skipped for step in steps] == [False, True, False, False]
    assert [step.loss_scale for step in steps] == [256.0, 256.0, 128.0, 128.0]
    np.testing.assert_allclose([steps[i].loss for i in (0, 2, 3)], [training.losses[i] for i in (0, 2, 3)], rtol=1e-6)
    assert steps[0].grad_norm == pytest.approx(steps[2].grad_norm, rel=2.0)  # no scale is left in
    assert {row.module for row in run.readings() if row.site == "loss_scale"} == {"DynamicLossScaleUpdateCell"}


@pytest.mark.night
def test_a_fixed_scale_that_the_optimizer_takes_out(tmp_path: Path) -> None:
    def fixed(t: Training) -> None:
        step = nn.TrainOneStepCell(nn.WithLossCell(t.net, t.loss_fn), t.optimizer, sens=512.0)
        step.set_train()
        for x, y in t.data[:STEPS]:
            t.keep(step(x, y))

    _, plain = recorded(tmp_path / "plain", functional)
    _, run = recorded(tmp_path / "run", fixed, lambda p: nn.AdamWeightDecay(p, learning_rate=0.01))
    _, own = recorded(tmp_path / "own", fixed, lambda p: nn.Momentum(p, 0.01, 0.9, loss_scale=512.0))

    assert {step.loss_scale for step in (*records(run), *records(own))} == {512.0}
    for other in (run, own):
        assert records(other)[0].loss == pytest.approx(records(plain)[0].loss, rel=1e-6)
        assert records(other)[0].grad_norm == pytest.approx(records(plain)[0].grad_norm, rel=1e-5)


def test_a_step_that_the_program_itself_leaves_out(tmp_path: Path) -> None:
    def careful(t: Training) -> None:
        differentiated = ms.value_and_grad(t.forward, None, t.optimizer.parameters)
        for i, (x, y) in enumerate(t.data[:STEPS]):
            _, gradients = differentiated(x * (float("nan") if i == 1 else 1.0), y)
            if amp.all_finite(gradients):
                t.optimizer(gradients)

    _, run = recorded(tmp_path / "run", careful)

    assert [step.skipped for step in records(run)] == [False, True, False, False]
    assert [step.step for step in records(run)] == list(range(STEPS))


def test_a_failure_inside_switches_off_and_training_goes_on(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    plain = Training()
    functional(plain)
    check, n = Sentinel.check, iter(range(9))

    def broken(*args: Any, **kwargs: Any) -> Any:
        if next(n) == 2:
            raise RuntimeError("planted")
        return check(*args, **kwargs)

    monkeypatch.setattr(Sentinel, "check", broken)
    watched, run = recorded(tmp_path / "run", functional)

    assert watched.weights() == plain.weights()
    assert capfd.readouterr().err.count("switched off after an internal error") == 1
    assert [step.step for step in records(run)] == [0, 1]
    assert any("planted" in line for line in run.run.warnings)


def test_a_part_that_fails_is_taken_out_alone(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(Levels, "collect", broken)
    _, run = recorded(tmp_path / "run", functional)

    assert len(records(run)) == STEPS
    assert capfd.readouterr().err.count("Levels switched off after an internal error: RuntimeError: planted") == 1


def test_a_replay_that_fails_leaves_what_the_check_saw(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(Failures, "investigate", broken)
    _, run = recorded(tmp_path / "run", planted)

    found = diagnose(run)
    assert (found.status, found.findings[0].code, found.findings[0].step) == ("cannot-tell", "HC101", 2)
    assert "first.weight" in found.findings[0].title
    assert capfd.readouterr().err.count("Failures switched off after an internal error: RuntimeError: planted") == 1


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    from mindspore.common import api
    from mindspore.ops.composite import base

    before = (nn.Cell.__call__, nn.Optimizer.__call__, api._JitExecutor.__call__, base._pynative_forward_run)

    recorded(tmp_path / "run", functional)

    assert (nn.Cell.__call__, nn.Optimizer.__call__, api._JitExecutor.__call__, base._pynative_forward_run) == before
    assert "__call__" not in vars(nn.Optimizer)


def test_evaluation_is_no_training(tmp_path: Path) -> None:
    def evaluated(t: Training) -> None:
        functional(t)
        t.net.set_train(False)
        t.net(t.data[0][0])
        ms.Model(t.net, t.loss_fn, t.optimizer, metrics={"loss"}).eval(
            mindspore.dataset.GeneratorDataset([(x.asnumpy(), y.asnumpy()) for x, y in t.data[:2]], ["x", "y"]),
            dataset_sink_mode=False,
        )

    _, run = recorded(tmp_path / "run", evaluated)

    assert len(records(run)) == STEPS


def test_gradients_of_inputs_alone_are_no_training(tmp_path: Path) -> None:
    def attacked(t: Training) -> None:
        for x, y in t.data[:2]:
            ms.grad(t.forward, 0)(x, y)
        functional(t)

    _, run = recorded(tmp_path / "run", attacked)

    assert [step.n_microbatches for step in records(run)] == [1] * STEPS


@pytest.mark.night
def test_two_optimizers_that_take_turns(tmp_path: Path) -> None:
    def two(t: Training) -> None:
        parts = [nn.Adam(t.net.first.trainable_params(), 0.01), nn.Adam(t.net.head.trainable_params(), 0.02)]
        each = [(ms.value_and_grad(t.forward, None, optimizer.parameters), optimizer) for optimizer in parts]
        for x, y in t.data[:STEPS]:
            for differentiated, optimizer in each:
                optimizer(differentiated(x, y)[1])

    _, run = recorded(tmp_path / "run", two)

    assert [step.step for step in records(run)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [step.lr for step in records(run)] == [0.01, 0.02] * STEPS
