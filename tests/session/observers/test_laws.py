"""Laws of a training step: what breaks one is named with its parameter and step; what a program always does is not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_day import first_of_each
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.detect.engine import Engine
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_STEPS, AT, N_MICRO = 20, 9, 3
WARNS = ("warning", "error")


class Net(nn.Module):
    """Dropout, batch statistics, a checkpoint, an embedding, tied to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.norm = nn.BatchNorm1d(12)
        self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 12)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(12, 20)
        self.is_cut = self.is_short = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens))
        if self.is_cut:
            hidden = hidden.detach()
        if self.is_short:
            return self.head(hidden)
        return self.head(hidden + checkpoint(self._inner, hidden, use_reentrant=False))

    def _inner(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(functional.gelu(self.up(hidden))))


class Job:
    """A training loop with a place for something to go wrong at each stage."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.is_zeroed = lambda step: True
        self.is_gone_back = lambda step, number: True
        self.times = lambda step, number: 1  # how often a loss is gone back from
        self.after_backward: Callable[[int], None] = lambda step: None
        self.after_clip: Callable[[int], None] = lambda step: None
        self.after_step: Callable[[int], None] = lambda step: None

    def train(self, out: Path, n_steps: int = N_STEPS, **options: Any) -> list[Finding]:
        with hypocenter.watch(out=str(out), **options):
            self.loop(n_steps)
        return findings(out)

    def loop(self, n_steps: int) -> None:
        for step in range(n_steps):
            if self.is_zeroed(step):
                self.optimizer.zero_grad()
            for number in range(N_MICRO):
                tokens = torch.randint(0, 20, (16,))
                loss = functional.cross_entropy(self.model(tokens), (tokens + 1) % 20) / N_MICRO
                if self.is_gone_back(step, number):
                    for count in range(1, self.times(step, number) + 1):
                        loss.backward(retain_graph=count < self.times(step, number))
            self.after_backward(step)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.after_clip(step)
            self.optimizer.step()
            self.after_step(step)


def findings(out: Path) -> list[Finding]:
    engine, found, run = Engine(), list[Finding](), open_run(out)
    rows: dict[int, list[Any]] = {}
    for row in run.readings():
        rows.setdefault(row.step, []).append(row)
    for rank, record in run.step_records():
        found += engine.feed(rank, record.step, record, rows.get(record.step, ()))
    return found


def at(step: int, act: Callable[[], Any]) -> Callable[[int], None]:
    def when(now: int) -> None:
        if now == step:
            with torch.no_grad():
                act()

    return when


def grad(job: Job, name: str) -> torch.Tensor:
    found = job.model.get_parameter(name).grad
    assert found is not None
    return found


def double(job: Job) -> None:
    job.after_backward = at(AT, lambda: grad(job, "up.weight").mul_(2))


def drop(job: Job) -> None:
    job.after_backward = at(AT, lambda: setattr(job.model.up.weight, "grad", None))


def zeros(job: Job) -> None:
    job.after_clip = at(AT, lambda: grad(job, "up.weight").zero_())


def swap(job: Job) -> None:
    def act() -> None:
        mine, others = grad(job, "norm.weight"), grad(job, "norm.bias")
        held = mine.clone()
        mine.copy_(others)
        others.copy_(held)

    job.after_backward = at(AT, act)


def cast(job: Job) -> None:
    job.after_clip = at(AT, lambda: grad(job, "up.weight").copy_(grad(job, "up.weight").bfloat16()))


def hook(job: Job) -> None:
    steps = {"now": 0}
    job.after_step = lambda step: steps.update(now=step + 1)
    job.model.up.weight.register_hook(lambda g: 0.5 * g if steps["now"] >= AT else g)


def not_zeroed(job: Job) -> None:
    job.is_zeroed = lambda step: step < AT


def never_zeroed(job: Job) -> None:
    job.is_zeroed = lambda step: False


def all_halved(job: Job) -> None:
    job.after_clip = at(AT, lambda: [grad(job, name).mul_(0.5) for name, _ in job.model.named_parameters()])


def lost_microbatch(job: Job) -> None:
    job.is_gone_back = lambda step, number: (step, number) != (AT, 1)


def overwritten(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: job.model.up.weight.data.mul_(1.05))


def stale(job: Job) -> None:
    kept: list[torch.Tensor] = []

    def after(step: int) -> None:
        if step == AT - 4:
            kept.append(job.model.up.weight.detach().clone())
        elif step == AT - 1:
            job.model.up.weight.data.copy_(kept[0])

    job.after_step = after


def cast_weight(job: Job) -> None:
    def after(step: int) -> None:
        if step >= AT - 1:
            job.model.up.weight.data = job.model.up.weight.data.bfloat16().float()

    job.after_step = after


def state_reset(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: job.optimizer.state.pop(job.model.up.weight))


def state_scaled(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: job.optimizer.state[job.model.up.weight]["exp_avg"].mul_(3))


def cut_off(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: setattr(job.model, "is_cut", True))


def built_anew(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: setattr(job.model, "up", nn.Linear(12, 24)))


def left_out(job: Job) -> None:
    held = [p for name, p in job.model.named_parameters() if name != "up.weight"]
    job.optimizer = torch.optim.AdamW(held, lr=1e-2)


def gone_back_twice(job: Job) -> None:
    job.times = lambda step, number: 2 if step >= AT and number == 1 else 1


def updated_twice(job: Job) -> None:
    job.after_step = at(AT - 1, lambda: job.optimizer.step())


FAULTS: dict[str, tuple[Callable[[Job], None], str, int, str | None]] = {
    "one gradient doubled": (double, "HC232", AT, "up.weight"),
    "one gradient dropped": (drop, "HC232", AT, "up.weight"),
    "one gradient zeroed": (zeros, "HC232", AT, "up.weight"),
    "two gradients exchanged": (swap, "HC232", AT, "norm.weight"),
    "one gradient cast": (cast, "HC232", AT, "up.weight"),
    "a hook that begins to halve": (hook, "HC232", AT, "up.weight"),
    "not zeroed any more": (not_zeroed, "HC232", AT, "embed.weight"),
    "never zeroed": (never_zeroed, "HC232", 1, "embed.weight"),
    "all gradients halved": (all_halved, "HC232", AT, None),
    "a micro-batch thrown away": (lost_microbatch, "HC233", AT, None),
    "a weight overwritten": (overwritten, "HC231", AT, "up.weight"),
    "a weight of before": (stale, "HC231", AT, "up.weight"),
    "a weight cast": (cast_weight, "HC231", AT, "up.weight"),
    "state made anew": (state_reset, "HC231", AT, "up.weight"),
    "state scaled": (state_scaled, "HC231", AT, "up.weight"),
    "cut off from the loss": (cut_off, "HC233", AT, "embed.weight"),
    "left out of the optimizer": (left_out, "HC233", 0, "up.weight"),
    "a module built anew": (built_anew, "HC233", AT, "up.weight"),
    "a loss gone back from twice": (gone_back_twice, "HC233", AT, None),
    "updated twice": (updated_twice, "HC233", AT, None),
}


LINES = {
    "a weight overwritten": "job.model.up.weight.data.mul_(1.05)",
    "a weight of before": "job.model.up.weight.data.copy_(kept[0])",
    "a weight cast": "job.model.up.weight.data = job.model.up.weight.data.bfloat16().float()",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of_each(FAULTS, lambda name: FAULTS[name][1]))
def test_what_breaks_a_law_is_named(name: str, tmp_path: Path) -> None:
    plant, code, step, parameter = FAULTS[name]
    job = Job()
    plant(job)

    told = job.train(tmp_path / "run", audit="every=1")
    found = [each for each in told if each.severity in WARNS or (name in LINES and each.code == code)]

    assert found, "nothing was said"
    first = found[0]
    assert (first.code, first.step, first.param) == (code, step, parameter), first
    if name in LINES:
        assert first.severity == "note"  # the program does it with its own hand: it may be meant
        assert first.source is not None
        assert LINES[name] in first.source.text


def clipped_weights(job: Job) -> None:
    def after(step: int) -> None:
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.clamp_(-0.05, 0.05)

    job.after_step = after


def averages_swapped_in_and_out(job: Job) -> None:
    average = copy.deepcopy(job.model.state_dict())

    def after(step: int) -> None:
        own = copy.deepcopy(job.model.state_dict())
        job.model.load_state_dict(average)
        with torch.no_grad():
            job.model.eval()(torch.arange(4))
        job.model.train().load_state_dict(own)
        for key, value in own.items():
            average[key].copy_(0.9 * average[key] + 0.1 * value if value.is_floating_point() else value)

    job.after_step = after


def looks_ahead(job: Job) -> None:
    slow = [p.detach().clone() for p in job.model.parameters()]

    def after(step: int) -> None:
        if step % 5 == 4:
            with torch.no_grad():
                for parameter, each in zip(job.model.parameters(), slow, strict=True):
                    each.lerp_(parameter, 0.5)
                    parameter.copy_(each)

    job.after_step = after


def always_scaled(job: Job) -> None:
    job.model.embed.weight.register_hook(lambda g: 0.1 * g)


def always_masked(job: Job) -> None:
    def after(step: int) -> None:
        grad(job, "embed.weight")[:5].zero_()

    job.after_backward = after


def noise(job: Job) -> None:
    own = torch.Generator().manual_seed(1)

    def after(step: int) -> None:
        for parameter in job.model.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.01 * torch.randn(parameter.shape, generator=own)

    job.after_backward = after


def frozen_on_purpose(job: Job) -> None:
    def after(step: int) -> None:
        if step == AT:
            job.model.embed.weight.requires_grad_(False)

    job.after_step = after


def a_look_at_other_data(job: Job) -> None:
    def after(step: int) -> None:
        if step % 4 == 3:
            float(functional.cross_entropy(job.model(torch.arange(16)), torch.arange(16)))

    job.after_step = after


def a_part_of_gradients_kept(job: Job) -> None:
    """Momentum without a state of its own."""

    def after(step: int) -> None:
        for parameter in job.model.parameters():
            assert parameter.grad is not None
            parameter.grad *= 0.9

    job.is_zeroed = lambda step: False
    job.after_step = after


def a_part_clipped_by_itself(job: Job) -> None:
    """Which does not act at first."""

    def after(step: int) -> None:
        nn.utils.clip_grad_norm_(job.model.head.parameters(), 100.0 if step < AT else 0.01)

    job.after_backward = after


def a_head_made_anew_now_and_then(job: Job) -> None:
    def after(step: int) -> None:
        if step % 10 == 9:
            job.model.head.reset_parameters()

    job.after_step = after


def another_learning_rate(job: Job) -> None:
    def after(step: int) -> None:
        for group in job.optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + step)

    job.after_step = after


def a_part_not_called_any_more(job: Job) -> None:
    job.after_step = at(AT, lambda: setattr(job.model, "is_short", True))


def another_optimizer_in_between(job: Job) -> None:
    other = torch.optim.SGD([job.model.up.weight], lr=1e-2)

    def after(step: int) -> None:
        if step >= AT:  # without a gradient of its own it would do nothing
            other.step()

    job.after_step = after


def a_threshold_that_follows_the_gradients(job: Job) -> None:
    past: list[float] = []

    def after(step: int) -> None:
        norms = [p.grad.norm() for p in job.model.parameters() if p.grad is not None]
        past.append(float(torch.stack(norms).norm()))
        nn.utils.clip_grad_norm_(job.model.parameters(), 0.8 * sorted(past)[len(past) // 2])

    job.after_backward = after


def leaves_out_updates(job: Job) -> None:
    """As programs do when a gradient is too large."""
    step_of = job.optimizer.step
    now = {"step": 0}
    job.after_step = lambda step: now.update(step=step + 1)
    job.optimizer.step = lambda *args: None if now["step"] in (AT, AT + 3) else step_of(*args)  # type: ignore[method-assign]


def more_microbatches(job: Job) -> None:
    """From a step on, as schedules of the batch size have it."""

    def gone_back(step: int, number: int) -> bool:
        if step >= AT and number == 0:
            tokens = torch.randint(0, 20, (16,))
            functional.cross_entropy(job.model(tokens), (tokens + 1) % 20).backward()
        return True

    job.is_gone_back = gone_back


def an_optimizer_for_each_parameter(job: Job) -> None:
    """Updated as soon as its gradient is there: the next gradient may lie where the last one lay."""
    optimizers = {p: torch.optim.AdamW([p], lr=1e-2) for p in job.model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    job.optimizer.step = lambda *args: None  # type: ignore[method-assign]


HEALTHY: dict[str, Callable[[Job], None]] = {
    "plain": lambda job: None,
    "weights clipped": clipped_weights,
    "averages swapped in and out": averages_swapped_in_and_out,
    "lookahead": looks_ahead,
    "one gradient always scaled": always_scaled,
    "one gradient always masked": always_masked,
    "noise on gradients": noise,
    "a part not called any more": a_part_not_called_any_more,
    "frozen on purpose": frozen_on_purpose,
    "a look at other data": a_look_at_other_data,
    "a part of gradients kept": a_part_of_gradients_kept,
    "a part clipped by itself": a_part_clipped_by_itself,
    "a head made anew now and then": a_head_made_anew_now_and_then,
    "another optimizer in between": another_optimizer_in_between,
    "a threshold that follows the gradients": a_threshold_that_follows_the_gradients,
    "another learning rate": another_learning_rate,
    "leaves out updates": leaves_out_updates,
    "more micro-batches": more_microbatches,
    "an optimizer for each parameter": an_optimizer_for_each_parameter,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_what_a_program_always_does_is_no_fault(name: str, tmp_path: Path) -> None:
    job = Job()
    HEALTHY[name](job)

    found = job.train(tmp_path / "run", 24, audit="every=1")

    assert [each for each in found if each.severity in WARNS] == []


class _RoundsOtherwise(torch.autograd.Function):
    """The gradient of what a fused kernel computes, whose intermediate values have another format."""

    by = 0.0

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1.0 + _RoundsOtherwise.by)


def _other_kernels(graph: Any, inputs: Any) -> Callable[..., Any]:
    return lambda *args: graph(*(_RoundsOtherwise.apply(a) if isinstance(a, nn.Parameter) else a for a in args))


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_gradient_of_compiled_code_is_not_accused_for_what_its_operators_give(
    is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    head = job.model.head
    if is_compiled:
        head.forward = torch.compile(head.forward, backend=_other_kernels)  # type: ignore[method-assign]
    else:  # the same of the program's own making: then it is a fault
        head.weight.register_hook(lambda gradient: gradient * (1.0 + _RoundsOtherwise.by))
    monkeypatch.setattr(_RoundsOtherwise, "by", 0.0)
    job.after_backward = at(AT, lambda: setattr(_RoundsOtherwise, "by", 0.02))

    found = [each for each in job.train(tmp_path / "run", audit="every=1") if each.severity in WARNS]

    if is_compiled:
        assert found == []
    else:
        assert [(each.code, each.step, each.param) for each in found[:1]] == [("HC232", AT + 1, "head.weight")]


@pytest.mark.slow
@pytest.mark.parametrize("audit", ["never", "every=1"])
def test_training_is_the_same_to_the_bit(audit: str, tmp_path: Path) -> None:
    watched, plain = Job(), Job()
    torch.manual_seed(1)
    watched.train(tmp_path / "run", audit=audit)
    torch.manual_seed(1)
    for _ in range(N_STEPS):
        plain.optimizer.zero_grad()
        for _ in range(N_MICRO):
            tokens = torch.randint(0, 20, (16,))
            (functional.cross_entropy(plain.model(tokens), (tokens + 1) % 20) / N_MICRO).backward()
        nn.utils.clip_grad_norm_(plain.model.parameters(), 0.5)
        plain.optimizer.step()

    for ours, theirs in zip(watched.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_without_an_audit_what_stays_wrong_is_found_too(tmp_path: Path) -> None:
    job = Job()
    cut_off(job)

    found = [each for each in job.train(tmp_path / "run") if each.severity in WARNS]

    assert [(each.code, each.step, each.param) for each in found] == [("HC233", AT, "embed.weight")]


def test_backward_passes_without_an_update_are_told_at_the_end(tmp_path: Path) -> None:
    job = Job()
    update, now = job.optimizer.step, {"step": 0}
    job.after_step = lambda step: now.update(step=step + 1)
    job.optimizer.step = lambda *args: update(*args) if now["step"] < AT else None  # type: ignore[method-assign]

    job.train(tmp_path / "run")

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.severity in WARNS]
    assert [(f.code, f.step) for f in found] == [("HC233", AT)]
    assert found[0].title == f"the gradients of the last {(N_STEPS - AT) * N_MICRO} micro-batches are in no update"


class Forgetful(Net):
    """What it does at a call depends on the calls before, in ways that can be put back or cannot."""

    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.n_calls, self.numbers = 0, numbers

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.n_calls += 1
        return super().forward(tokens) * (1.0 + 0.01 * self.n_calls + 0.01 * next(self.numbers))


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers", [lambda: iter(list(range(99))), lambda: (n for n in range(99))], ids=["list", "generator"]
)
def test_a_model_that_counts_its_calls_trains_as_without_us(numbers: Callable[[], Any], tmp_path: Path) -> None:
    trained: list[Job] = []
    for out in (tmp_path / "run", None):
        job = Job()
        torch.manual_seed(0)
        job.model = Forgetful(numbers())
        job.optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-2)
        torch.manual_seed(1)
        with contextlib.nullcontext() if out is None else hypocenter.watch(out=str(out), audit="every=1"):
            job.loop(8)
        trained.append(job)

    for ours, theirs in zip(*(job.model.state_dict().values() for job in trained), strict=True):
        assert torch.equal(ours, theirs)


def test_an_average_that_is_swapped_in_and_not_back_is_told_at_any_step(tmp_path: Path) -> None:
    job = Job()
    average = {name: values.clone() for name, values in job.model.state_dict().items()}
    job.after_step = at(AT, lambda: job.model.load_state_dict(average))

    found = job.train(tmp_path / "run", audit="never")

    assert [(f.code, f.severity, f.step) for f in found] == [("HC231", "note", AT + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a weight overwritten", "a weight of before", "a weight cast"])
def test_a_weight_that_is_written_to_once_is_told_without_audits(name: str, tmp_path: Path) -> None:
    plant, code, step, parameter = FAULTS[name]
    job = Job()
    plant(job)

    (found,) = job.train(tmp_path / "run", audit="never")

    assert (found.code, found.step, found.param) == (code, step, parameter)


def test_optimizers_that_share_parameters_are_left_alone(tmp_path: Path) -> None:
    job = Job()
    other = torch.optim.SGD(job.model.up.parameters(), lr=1e-3)
    job.after_step = lambda step: other.step()

    assert job.train(tmp_path / "run", audit="never") == []


def test_an_option_that_changes_and_stays_is_a_note(tmp_path: Path) -> None:
    job = Job()
    job.after_step = at(AT - 1, lambda: job.optimizer.param_groups[0].update(lr=0.0))

    found = job.train(tmp_path / "run", audit="never")

    assert [(f.code, f.severity, f.step, f.site) for f in found] == [("HC231", "note", AT, "group[0].lr")]
    assert "lr of parameter group 0 is 0, and was 0.01" in found[0].title
    assert (found[0].cause, found[0].confidence) == ("unknown", "possible"), "it may be meant"


def test_what_a_schedule_moves_is_not_told(tmp_path: Path) -> None:
    job = Job()
    schedule = torch.optim.lr_scheduler.StepLR(job.optimizer, AT)
    job.after_step = lambda step: schedule.step()

    assert job.train(tmp_path / "run", audit="never") == []


def test_what_a_plateau_lowers_is_not_told_and_what_else_changes_then_is(tmp_path: Path) -> None:
    job = Job()
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(job.optimizer, patience=0)
    job.after_step = at(AT - 1, lambda: [schedule.step(1.0), schedule.step(2.0)])
    assert job.train(tmp_path / "run", audit="never") == []

    job = Job()
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(job.optimizer, patience=0)

    def also_decay() -> None:
        schedule.step(1.0)
        schedule.step(2.0)
        job.optimizer.param_groups[0]["weight_decay"] = 0.5

    job.after_step = at(AT - 1, also_decay)
    (found,) = job.train(tmp_path / "other", audit="never")
    assert found.site == "group[0].weight_decay"


@pytest.mark.slow
@pytest.mark.parametrize(("audit", "is_told"), [("every=1", True), ("auto", False)])
def test_where_memory_is_short_no_step_is_audited(
    audit: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hypocenter.tap.free_memory.free_bytes", lambda device: 1 << 10)
    job = Job()
    double(job)

    found = job.train(tmp_path / "run", audit=audit)

    assert [f for f in found if f.code == "HC232"] == []
    assert ("step 0 could not be audited: it takes about" in capsys.readouterr().err) is is_told


def _skipping(is_left_out: Callable[[int], bool], large: int = -1) -> Callable[[Job, int], None]:
    """Leave out some updates and throw their gradients away; at step `large` the loss is a large one."""

    def loop(job: Job, n_steps: int) -> None:
        for step in range(n_steps):
            job.optimizer.zero_grad()
            for _ in range(N_MICRO):
                tokens = torch.randint(0, 20, (16,))
                loss = functional.cross_entropy(job.model(tokens), (tokens + 1) % 20) / N_MICRO
                (loss * (50 if step == large else 1)).backward()
            nn.utils.clip_grad_norm_(job.model.parameters(), 0.5)
            if not is_left_out(step):
                job.optimizer.step()

    return loop


@pytest.mark.night
def test_an_update_that_is_left_out_although_its_gradients_are_as_usual(tmp_path: Path) -> None:
    job = Job()
    with hypocenter.watch(out=str(tmp_path / "run"), audit="every=1"):
        _skipping(lambda step: step == AT)(job, N_STEPS)

    said = [(f.code, f.severity, f.step, f.title) for f in findings(tmp_path / "run")]
    assert said == [
        ("HC233", "note", AT, f"the gradients of {N_MICRO} micro-batches are thrown away before this update")
    ]


@pytest.mark.night
def test_an_update_that_is_left_out_because_it_is_large(tmp_path: Path) -> None:
    job = Job()
    with hypocenter.watch(out=str(tmp_path / "run"), audit="every=1"):
        _skipping(lambda step: step == AT, large=AT)(job, N_STEPS)

    assert [each.code for each in findings(tmp_path / "run")] == ["HC401"]  # a note: the loss did jump


@pytest.mark.night
def test_more_microbatches_that_all_count(tmp_path: Path) -> None:
    job = Job()
    with hypocenter.watch(out=str(tmp_path / "run"), audit="every=1"):
        for step in range(N_STEPS):
            job.optimizer.zero_grad()
            for _ in range(N_MICRO if step < AT else 2 * N_MICRO):
                tokens = torch.randint(0, 20, (16,))
                functional.cross_entropy(job.model(tokens), (tokens + 1) % 20).div(N_MICRO).backward()
            job.optimizer.step()

    assert findings(tmp_path / "run") == []
    looked = [r for r in open_run(tmp_path / "run").readings() if r.port == "balanced" and r.module == "gradient"]
    assert len(looked) == N_STEPS - 1  # all but the one that learned that there are more


def microbatches(job: Job, before_each: Callable[[], object]) -> None:
    for _ in range(8):
        job.optimizer.zero_grad()
        for _ in range(N_MICRO):
            tokens = torch.randint(0, 20, (16,))
            before_each()
            functional.cross_entropy(job.model(tokens), (tokens + 1) % 20).div(N_MICRO).backward()
        job.optimizer.step()


def test_gradients_that_are_zeroed_for_each_microbatch_from_the_start(tmp_path: Path) -> None:
    job = Job()
    with hypocenter.watch(out=str(tmp_path / "run")):
        microbatches(job, job.optimizer.zero_grad)

    (found,) = findings(tmp_path / "run")
    assert (found.code, found.severity) == ("HC233", "warning")
    assert found.title == f"the gradients of {N_MICRO - 1} of {N_MICRO} micro-batches are in no update"


def test_gradients_of_another_loop_that_are_for_something_else(tmp_path: Path) -> None:
    """A program that measures first, and trains then."""
    job = Job()

    def measure(tokens: Tensor) -> None:
        functional.cross_entropy(job.model(tokens), (tokens + 1) % 20).backward()
        sum(float(p.grad.norm()) for p in job.model.parameters() if p.grad is not None)
        job.optimizer.zero_grad()

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(8):
            measure(torch.randint(0, 20, (16,)))
            tokens = torch.randint(0, 20, (16,))
            functional.cross_entropy(job.model(tokens), (tokens + 1) % 20).backward()
            job.optimizer.step()

    assert [f for f in findings(tmp_path / "run") if f.severity != "note"] == []


@pytest.mark.night
def test_the_end_of_each_epoch_is_thrown_away(tmp_path: Path) -> None:
    job, n_batches = Job(), 2 * N_MICRO - 1
    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(N_STEPS):
            for number in range(1, n_batches + 1):
                tokens = torch.randint(0, 20, (16,))
                functional.cross_entropy(job.model(tokens), (tokens + 1) % 20).div(N_MICRO).backward()
                if number % N_MICRO == 0:
                    job.optimizer.step()
                    job.optimizer.zero_grad()
            job.optimizer.zero_grad()

    said = [(f.code, f.severity, f.title) for f in findings(tmp_path / "run")]
    n_thrown = n_batches - N_MICRO
    batches = "micro-batch" if n_thrown == 1 else "micro-batches"
    assert said == [("HC233", "note", f"the gradients of {n_thrown} {batches} are thrown away before this update")]


@pytest.mark.parametrize(("is_detached", "codes"), [(False, ["HC233"]), (True, [])])
def test_a_ratio_to_itself_has_no_gradient(is_detached: bool, codes: list[str], tmp_path: Path) -> None:
    """As of a policy to the old one, which is not kept apart from it."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.LogSoftmax(-1))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(6):
            logs = policy(torch.randn(16, 6))
            old = logs.detach() if is_detached else logs
            optimizer.zero_grad()
            (-(logs - old).exp() * torch.randn(16, 3)).mean().backward()
            optimizer.step()
    assert [each.code for each in findings(tmp_path)] == codes
