"""Laws of a training step in MindSpore: what breaks one is named with parameter and step; a habit is no fault."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

import hypocenter
from hypocenter.detect.law_rows import BALANCED, UPDATE
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from hypocenter.session.host_arrays import strided
from hypocenter.session.mindspore.framework import picked

sys.path.insert(0, str(Path(__file__).parent))

N_STEPS, AT, N_MICRO = 17, 7, 2
WARNS = ("warning", "error")


class Net(nn.Cell):
    """Batch statistics, an embedding, a shortcut that may be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.norm = nn.BatchNorm1d(12)
        self.up, self.down = nn.Dense(12, 24), nn.Dense(24, 12)
        self.head = nn.Dense(12, 20)
        self.is_cut = self.is_short = False
        self.n_calls = 0

    def construct(self, tokens: Any) -> Any:
        self.n_calls += 1
        hidden = self.embed(tokens)
        if self.is_cut:
            hidden = ops.stop_gradient(hidden)
        hidden = self.norm(hidden)
        if self.is_short:
            return self.head(hidden)
        return self.head(hidden + self.down(ops.gelu(self.up(hidden))))


class Job:
    """A training loop that adds up its micro-batches, with a place for something to go wrong at each stage."""

    def __init__(self, kind: Callable[..., Any] = nn.Adam) -> None:
        ms.set_seed(1)
        np.random.seed(1)
        self.net = Net()
        self.optimizer = kind(self.net.trainable_params(), 1e-2)
        self.counts: Callable[[int, int], float] = lambda step, number: 1.0  # how often a micro-batch counts
        self.on_gradients: Callable[[int, list[Any]], list[Any]] = lambda step, gradients: gradients
        self.n_ignored: Callable[[int], int] = lambda number: 0  # labels of a micro-batch
        self.reduction = "mean"
        self.after_clip: Callable[[int], float] = lambda step: 1.0
        self.after_step: Callable[[int], None] = lambda step: None

    def train(self, out: Path, n_steps: int = N_STEPS, **options: Any) -> list[Finding]:
        with hypocenter.watch(self.net, out=str(out), **options):
            self.loop(n_steps)
        return [f for f in diagnose(open_run(out)).findings if f.severity in WARNS]

    def loop(self, n_steps: int) -> None:
        loss = nn.CrossEntropyLoss(reduction=self.reduction)
        weights = self.optimizer.parameters
        gradient = ms.value_and_grad(lambda x, y: loss(self.net(x), y) / N_MICRO, None, weights)
        draw = np.random.default_rng(0)
        for step in range(n_steps):
            total: list[Any] = [ops.zeros_like(weight) for weight in weights]
            for number in range(N_MICRO):
                tokens = draw.integers(0, 20, 16)
                labels = (tokens + 1) % 20
                labels[: self.n_ignored(number)] = -100
                _, given = gradient(Tensor(tokens, ms.int32), Tensor(labels, ms.int32))
                counts = self.counts(step, number)
                total = [each + counts * part for each, part in zip(total, given, strict=True)]
            total = self.on_gradients(step, total)
            clipped = ops.clip_by_global_norm(tuple(total), 0.05)
            factor = self.after_clip(step)
            self.optimizer(tuple(clipped if factor == 1.0 else (factor * each for each in clipped)))
            self.after_step(step)

    def parameter(self, name: str) -> Parameter:
        return dict(self.net.parameters_and_names())[name]

    def place(self, name: str) -> int:
        return [p.name for p in self.optimizer.parameters].index(self.parameter(name).name)


def at(when: int, then: Callable[[], Any]) -> Callable[[int], None]:
    return lambda step: then() and None if step == when else None


def changed(job: Job, name: str, how: Callable[[Any], Any], first: int = AT, last: int = N_STEPS) -> None:
    """What is done to one gradient."""

    def on_gradients(step: int, gradients: list[Any]) -> list[Any]:
        if first <= step < last:
            gradients[job.place(name)] = how(gradients[job.place(name)])
        return gradients

    job.on_gradients = on_gradients


def double(job: Job) -> None:
    changed(job, "up.weight", lambda gradient: gradient * 2)


def drop(job: Job) -> None:
    changed(job, "up.weight", ops.zeros_like, last=AT + 1)


def reverse(job: Job) -> None:
    changed(job, "up.weight", lambda gradient: Tensor(gradient.asnumpy()[::-1].copy()), last=AT + 1)


def not_zeroed(job: Job) -> None:
    kept: list[Any] = []

    def on_gradients(step: int, gradients: list[Any]) -> list[Any]:
        found = [a + b for a, b in zip(gradients, kept, strict=True)] if step == AT else gradients
        kept[:] = gradients
        return found

    job.on_gradients = on_gradients


def lost_microbatch(job: Job) -> None:
    job.counts = lambda step, number: 0.0 if step >= AT and number == 1 else 1.0


def halved(job: Job) -> None:
    job.after_clip = lambda step: 0.5 if step >= AT else 1.0


def write(job: Job, name: str, how: Callable[[Any], Any]) -> None:
    held = job.parameter(name)
    ops.assign(held, Tensor(how(held.asnumpy())))  # after set_data, nn's compiled optimizers go on with the old one


def overwritten(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: write(job, "up.weight", lambda values: values * np.float32(1.05)))


def cast_weight(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: write(job, "up.weight", lambda v: v.astype(np.float16).astype(np.float32)))


def state_reset(job: Job) -> None:
    def reset() -> None:
        held = job.optimizer.moment2[job.place("up.weight")]
        ops.assign(held, Tensor(np.zeros_like(held.asnumpy())))

    job.after_step = at(AT - 1, reset)


def cut_off(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: setattr(job.net, "is_cut", True))


def updated_twice(job: Job) -> None:
    given: list[Any] = []

    def keep(step: int, gradients: list[Any]) -> list[Any]:
        given[:] = [tuple(gradients)]
        return gradients

    update = job.optimizer

    class Twice:
        parameters = update.parameters

        def __call__(self, gradients: Any) -> None:
            update(gradients)
            if job.step >= AT - 1:
                update(gradients)

    job.step = 0  # type: ignore[attr-defined]
    job.after_step = lambda step: setattr(job, "step", step + 1)
    job.optimizer = Twice()


BETWEEN: dict[str, Callable[[Job], None]] = {
    "a weight overwritten": overwritten,
    "a weight cast": cast_weight,
    "state made anew": state_reset,
}
GRADIENT: dict[str, tuple[Callable[[Job], None], str, str | None]] = {
    "one doubled": (double, "HC232", "up.weight"),
    "one dropped": (drop, "HC232", "up.weight"),
    "one reversed": (reverse, "HC232", "up.weight"),
    "not zeroed": (not_zeroed, "HC232", "embed.embedding_table"),
    "all halved": (halved, "HC232", None),
    "a micro-batch thrown away": (lost_microbatch, "HC332", "embed.embedding_table"),  # it says more
}
USE: dict[str, tuple[Callable[[Job], None], str | None]] = {
    "cut off from the loss": (cut_off, "embed.embedding_table"),
    "updated twice": (updated_twice, None),
}


def told(plant: Callable[[Job], None], out: Path) -> list[tuple[str, int, str | None]]:
    job = Job()
    plant(job)
    return [(each.code, each.step, each.param) for each in job.train(out, audit="every=1")]


@pytest.mark.slow
@pytest.mark.parametrize("name", BETWEEN)
def test_hc231_what_changed_between_two_updates(name: str, tmp_path: Path) -> None:
    assert told(BETWEEN[name], tmp_path / "run") == [("HC231", AT, "up.weight")]


@pytest.mark.night
@pytest.mark.parametrize("name", GRADIENT)
def test_hc232_a_gradient_that_is_not_that_of_its_batch(name: str, tmp_path: Path) -> None:
    plant, code, parameter = GRADIENT[name]

    assert told(plant, tmp_path / "run") == [(code, AT, parameter)]


@pytest.mark.slow
@pytest.mark.parametrize("name", USE)
def test_hc233_what_is_trained_is_used_and_once(name: str, tmp_path: Path) -> None:
    plant, parameter = USE[name]

    assert told(plant, tmp_path / "run") == [("HC233", AT, parameter)]


def padded(weigh: str) -> Callable[[Job], None]:
    """Micro-batches of 16 and 4 labels; `weigh` says what the program does about it."""

    def plant(job: Job) -> None:
        job.n_ignored = lambda number: 12 * number
        job.reduction = "sum" if weigh == "sum" else "mean"
        if weigh == "by hand":
            job.counts = lambda step, number: (1.6, 0.4)[number]

    return plant


@pytest.mark.night
def test_hc331_labels_weigh_unequally(tmp_path: Path) -> None:
    assert told(padded("mean"), tmp_path / "mean") == [("HC331", 0, None)]
    assert told(padded("sum"), tmp_path / "sum") == []
    assert told(padded("by hand"), tmp_path / "by-hand") == []


def clipped_weights(job: Job) -> None:
    job.after_step = lambda step: write(job, "up.weight", lambda values: np.clip(values, -0.1, 0.1))


def always_scaled(job: Job) -> None:
    changed(job, "embed.embedding_table", lambda gradient: gradient * 0.5, first=0)


def a_part_not_called_any_more(job: Job) -> None:
    job.after_step = at(AT, lambda: setattr(job.net, "is_short", True))


def another_learning_rate(job: Job) -> None:
    rates = nn.ExponentialDecayLR(1e-2, 0.9, 4)
    job.optimizer = nn.Adam(job.net.trainable_params(), rates)


HEALTHY: dict[str, Callable[[Job], None]] = {
    "plain": lambda job: None,
    "weights clipped": clipped_weights,
    "one gradient always scaled": always_scaled,
    "a part not called any more": a_part_not_called_any_more,
    "another learning rate": another_learning_rate,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_what_a_program_always_does_is_no_fault(name: str, tmp_path: Path) -> None:
    job = Job()
    HEALTHY[name](job)

    assert job.train(tmp_path / "run", audit="every=1") == []


@pytest.mark.slow
@pytest.mark.parametrize("is_used", [True, False])
def test_hc238_what_a_clip_gives_back_is_thrown_away(is_used: bool, tmp_path: Path) -> None:
    job = Job()
    weights = job.optimizer.parameters
    gradient = ms.value_and_grad(lambda x: (job.net(x) ** 2).mean(), None, weights)

    with hypocenter.watch(job.net, out=str(tmp_path / "run")):
        for step in range(6):
            _, given = gradient(Tensor(np.random.default_rng(step).integers(0, 20, 16), ms.int32))
            clipped = ops.clip_by_global_norm(given, 0.05)
            job.optimizer(clipped if is_used else given)

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.severity in WARNS]
    assert [(f.code, f.step) for f in found] == ([] if is_used else [("HC238", 3)])


@pytest.mark.night
@pytest.mark.parametrize("kind", [lambda p, lr: nn.Momentum(p, lr, 0.9), optim.AdamW], ids=["nn", "experimental"])
def test_other_optimizers_are_looked_at_too(kind: Any, tmp_path: Path) -> None:
    healthy, written = Job(kind), Job(kind)
    overwritten(written)

    assert healthy.train(tmp_path / "healthy", audit="every=1") == []
    found = written.train(tmp_path / "written", audit="every=1")
    assert [(each.code, each.step, each.param) for each in found] == [("HC231", AT, "up.weight")]


def amsgrad(params: Any, lr: float) -> Any:
    return nn.Adam(params, lr, use_amsgrad=True)


def scaled(params: Any, lr: float) -> Any:
    return nn.Adam(params, lr, weight_decay=0.1, loss_scale=4.0)


def scheduled(params: Any, lr: float) -> Any:
    return nn.Adam(params, nn.CosineDecayLR(lr / 10, lr, 10))


def grouped(params: Any, lr: float) -> Any:
    return nn.Adam([{"params": params[:2], "weight_decay": 0.1, "lr": lr / 2}, {"params": params[2:]}], lr)


class Descent(nn.Optimizer):
    """A program's own."""

    def construct(self, gradients: Any) -> Any:
        for weight, gradient in zip(self._parameters, gradients, strict=True):
            ops.assign_sub(weight, 0.1 * gradient)
        return True


RULES: dict[str, Callable[[Any, float], Any]] = {
    "Adam": nn.Adam,
    "Adam with amsgrad": amsgrad,
    "Adam with a loss scale": scaled,
    "Adam with a schedule": scheduled,
    "Adam with groups": grouped,
    "AdamWeightDecay": lambda p, lr: nn.AdamWeightDecay(p, lr, weight_decay=0.1),
    "Momentum": lambda p, lr: nn.Momentum(p, lr, 0.9, weight_decay=0.01),
    "SGD": lambda p, lr: nn.SGD(p, lr, momentum=0.9, nesterov=True),
    "Adagrad": lambda p, lr: nn.Adagrad(p, learning_rate=lr),
    "experimental AdamW": lambda p, lr: optim.AdamW(p, lr=lr, weight_decay=0.1),
    "experimental SGD": lambda p, lr: optim.SGD(p, lr=lr, momentum=0.9),
    "its own": lambda p, lr: Descent(lr, p),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_hc235_an_update_by_its_rule_balances(name: str, tmp_path: Path) -> None:
    job = Job(RULES[name])
    n = len(job.optimizer.parameters)

    assert job.train(tmp_path / "run", 8, audit="every=1") == []
    rows = open_run(tmp_path / "run").readings()
    looked = [row for row in rows if (row.port, row.module) == (BALANCED, UPDATE)]
    assert len(looked) == 8
    n_told = n - 2 if name == "its own" else n  # what two move by is lost in their rounding: nothing fits that
    assert [(row.summary.n, row.summary.sum) for row in looked[4:]] == [(n_told, n_told)] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "severity"), [("Adam", "warning"), ("its own", "note")])
def test_hc235_what_a_hook_of_the_optimizer_does_to_a_weight(name: str, severity: str, tmp_path: Path) -> None:
    job, calls = Job(RULES[name]), list[int]()

    def shrink(cell: Any, given: Any, result: Any) -> None:
        calls.append(1)
        if len(calls) > AT:
            write(job, "down.weight", lambda values: values * np.float32(0.99))

    job.optimizer.register_forward_hook(shrink)
    job.train(tmp_path / "run", audit="every=1")

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC235"]
    assert [(each.step, each.param, each.severity) for each in found] == [(AT, "down.weight", severity)]


@pytest.mark.slow
@pytest.mark.parametrize(("since", "told"), [(AT, [("HC232", AT)]), (0, [])])
def test_hc232_a_step_that_stops_to_repeat_itself(since: int, told: list[tuple[str, int]], tmp_path: Path) -> None:
    job, steps = Job(), []
    draw = np.random.default_rng(7)
    job.after_step = lambda step: steps.append(step)
    head = job.net.head.construct

    def noisy(hidden: Any) -> Any:
        factor = 1.0 + 1e-2 * draw.random() if len(steps) >= since else 1.0
        return head(hidden) * float(factor)

    job.net.head.construct = noisy
    job.train(tmp_path / "run", audit="every=1")

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if "loss of the run" in f.title]
    assert [(each.code, each.step) for each in found] == told


class Drawing(nn.Cell):
    """What it draws cannot be drawn again; what it keeps in Python counts its calls."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, 2)
        self.draw, self.calls = draw, []

    def construct(self, x: Any) -> Any:
        self.calls.append(len(self.calls))
        hidden = self.draw(self.norm(self.first(x)))
        return self.last(hidden)


@ms.jit
def compiled(x: Any) -> Any:
    return ops.relu(x) * 2


DRAWS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "nothing": lambda: lambda x: x,
    "standard normal": lambda: lambda x: x + ops.standard_normal(x.shape),
    "compiled": lambda: compiled,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "audit"),
    [
        ("nothing", "auto"),
        ("standard normal", "auto"),
        ("compiled", "auto"),
        ("nothing", "every=1"),
        pytest.param("standard normal", "every=1", marks=pytest.mark.queues),
        ("compiled", "every=1"),
    ],
)
def test_training_is_the_same_to_the_bit(draw: str, audit: str, tmp_path: Path) -> None:
    def trained(out: Path | None) -> list[Any]:
        ms.set_seed(1)
        net = Drawing(DRAWS[draw]()).set_train()
        optimizer = nn.Adam(net.trainable_params(), 1e-2)
        gradient = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, optimizer.parameters)
        watched = contextlib.nullcontext() if out is None else hypocenter.watch(net, out=str(out), audit=audit)
        with watched:
            for step in range(8):
                optimizer(gradient(Tensor(np.random.default_rng(step).normal(size=(16, 8)), ms.float32))[1])
        return [*(p.asnumpy() for p in net.get_parameters()), np.array(net.calls)]

    for plain, ours in zip(trained(None), trained(tmp_path / "run"), strict=True):
        assert np.array_equal(plain, ours)


def test_where_memory_is_short_nothing_is_done_again(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("hypocenter.session.mindspore.audit.free_on_host", lambda: 1 << 10)
    job = Job()

    assert job.train(tmp_path / "run", 3, audit="every=1") == []
    assert "step 0 could not be audited: it takes about 0 MiB of the host" in capsys.readouterr().err
    assert job.net.n_calls == 3 * N_MICRO


@pytest.mark.parametrize("shape", [(5,), (4096,), (4097,), (3, 4111)])
def test_a_device_picks_the_elements_that_the_host_would(shape: tuple[int, ...]) -> None:
    tensor = Tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))

    assert np.array_equal(picked(tensor, 4096).asnumpy(), strided(tensor.asnumpy(), 4096))
