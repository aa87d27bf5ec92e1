"""Mixed precision used wrongly is recognised from what it does; used rightly, it is left in peace."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.engine import Engine, rules
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.rows import steps_of
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

pytestmark = pytest.mark.filterwarnings("ignore:(Detected call of|Seems like)")  # of a first update that is skipped
START = 1024.0  # low enough that this model overflows at no step


WHOLE = ("HC214", "note", 15)  # the counts of the whole run, at its last step


class Program:
    """A small float16 training loop; each fault or good habit overrides `step`."""

    init_scale = START
    dtype = torch.float16
    n_steps = 8
    optimizer = staticmethod(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
        self.opt = self.optimizer(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale)
        self.centers = torch.randn(64, 6)
        self.now = 0

    def loss(self) -> torch.Tensor:
        x = self.centers[torch.randperm(64)[:16]]
        with torch.autocast("cpu", self.dtype):
            return nn.functional.mse_loss(self.model(x).squeeze(-1).float(), x.sum(-1))

    def step(self) -> None:
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()

    def run(self) -> list[torch.Tensor]:
        for now in range(self.n_steps):
            self.now = now
            self.opt.zero_grad()
            self.step()
        return [p.detach().clone() for p in self.model.parameters()]


class ClipsTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsThenUnscales(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.unscale_(self.opt)
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsValuesTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsByHandTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        grads = [p.grad for p in self.model.parameters()]
        total = torch.stack([g.norm() for g in grads]).norm()
        for g in grads:
            g.mul_(min(1.0, 1.0 / float(total)))
        self.scaler.step(self.opt)
        self.scaler.update()


class DividesByHand(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        for p in self.model.parameters():
            p.grad.div_(self.scaler.get_scale())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class TwoScalers(Program):
    def step(self):
        self.other = getattr(self, "other", None) or torch.amp.GradScaler("cpu", init_scale=START)
        self.other.scale(torch.zeros(()))
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        self.scaler.get_scale()
        self.other.step(self.opt)
        self.other.update()
        self.scaler.update()


class UnscalesTooEarly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class SecondOfTwoClipsTooEarly(Program):
    """The first optimizer is unscaled before its clip, the second is not."""

    def __init__(self):
        super().__init__()
        self.opt = torch.optim.SGD(self.model[0].parameters(), lr=1e-3)
        self.opt2 = torch.optim.SGD(self.model[2].parameters(), lr=1e-3)

    def step(self):
        self.opt2.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model[0].parameters(), 1.0)
        nn.utils.clip_grad_norm_(self.model[2].parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.step(self.opt2)
        self.scaler.update()


class UpdatesBetweenTwoOptimizers(Program):
    """The scale grows every second update, between the two optimizers' steps."""

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.opt = torch.optim.SGD(self.model[0].parameters(), lr=1e-3)
        self.opt2 = torch.optim.SGD(self.model[2].parameters(), lr=1e-3)

    def step(self):
        self.opt2.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.scaler.step(self.opt2)
        if self.now % 3 == 0:
            self.scaler.update()


class NeverScales(Program):
    def step(self):
        loss = self.loss()
        self.scaler.scale(loss)
        loss.backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


def found(program: type[Program], out) -> list[tuple[str, str, int]]:
    trained()
    with hypocenter.watch(out=str(out), on_finding="skip" if program is SkippedByUs else "continue"):
        program().run()
    return [(f.code, f.severity, f.step) for f in findings(out)]


def findings(out) -> list[Finding]:
    """What the rules of this group say of a recording."""
    recorded = open_run(out)
    engine = Engine({code: rule for code, rule in rules().items() if code.startswith("HC21")})
    steps = steps_of(recorded, engine.reads)
    return [finding for step in steps for finding in engine.feed(step.rank, step.step, step.record, step.readings)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ClipsTooEarly, ("HC211", "error", 0)),
        (ClipsThenUnscales, ("HC211", "error", 0)),
        (ClipsValuesTooEarly, ("HC211", "error", 0)),
        (ClipsByHandTooEarly, ("HC211", "error", 0)),
        (SecondOfTwoClipsTooEarly, ("HC211", "error", 0)),
        (DividesByHand, ("HC212", "error", 0)),
        (TwoScalers, ("HC212", "error", 0)),
        (UnscalesTooEarly, ("HC212", "error", 0)),
        (UpdatesBetweenTwoOptimizers, ("HC212", "warning", 1)),
        (NeverScales, ("HC213", "error", 0)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else value[0],
)
def test_a_fault_is_named_once_at_its_first_step(program, expected, tmp_path):
    assert found(program, tmp_path / "run") == [expected]


class ScheduleRunsAhead(Program):
    init_scale = 2.0**22
    n_steps = 16
    is_held_back = False
    schedule = staticmethod(lambda opt: torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=20))

    def __init__(self):
        super().__init__()
        self.scheduler = self.schedule(self.opt)

    def step(self):
        super_scale = self.scaler.get_scale()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        if not self.is_held_back or self.scaler.get_scale() >= super_scale:
            self.scheduler.step()


class FusedScheduleRunsAhead(ScheduleRunsAhead):
    """The program judges by whether optimizer.step was called; a fused optimizer is called for a skipped one too."""

    optimizer = staticmethod(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True))

    def __init__(self):
        super().__init__()
        self.n_called = 0
        original = self.opt.step

        def step(*args, **kwargs):
            self.n_called += 1
            return original(*args, **kwargs)

        self.opt.step = step

    def step(self):
        before = self.n_called
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        if self.n_called > before:
            self.scheduler.step()


class LongScheduleRunsAhead(ScheduleRunsAhead):
    schedule = staticmethod(lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10_000))


class AverageRunsAhead(ScheduleRunsAhead):
    def step(self):
        self.average = getattr(self, "average", None) or torch.optim.swa_utils.AveragedModel(self.model)
        self.is_held_back = True
        super().step()
        self.average.update_parameters(self.model)


class ScheduleHeldBack(ScheduleRunsAhead):
    is_held_back = True


class ScheduleByEpoch(ScheduleRunsAhead):
    """Steps after step 3, which is skipped, then after each fourth."""

    def step(self):
        Program.step(self)
        if self.now % 4 == 3:
            self.scheduler.step()


@functools.cache
def trained() -> Program:
    """What a checkpoint holds."""
    program = Program()
    program.run()
    return program


class ResumesWithoutScaler(Program):
    """The checkpoint's scale fits; a new scaler starts far above."""

    n_steps = 24
    loads = False

    def __init__(self):
        super().__init__()
        before = trained()
        self.model.load_state_dict(before.model.state_dict())
        self.opt.load_state_dict(copy.deepcopy(before.opt.state_dict()))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
        if self.loads:
            self.scaler.load_state_dict(before.scaler.state_dict())


class ResumesWithFittingScaler(ResumesWithoutScaler):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=START)


class ResumesWell(ResumesWithoutScaler):
    loads = True


class BackwardInside(Program):
    """A block in float32 on purpose: its backward, inside autocast, is not."""

    large = 1.0

    def step(self):
        x = self.centers[:16]
        with torch.autocast("cpu", self.dtype):
            hidden = self.model[1](self.model[0](x))
            with torch.autocast("cpu", enabled=False):
                out = self.model[2](hidden.float() / self.large) * self.large
            self.scaler.scale((out.squeeze(-1) - x.sum(-1)).pow(2).mean()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class BackwardInsideOverflows(BackwardInside):
    large = 1e4


class ScalerWithBfloat16(Program):
    dtype = torch.bfloat16


class NeverLeavesAutocast(Program):
    dtype = torch.bfloat16

    def run(self):
        with torch.autocast("cpu", self.dtype):
            for now in range(self.n_steps):
                self.now = now
                self.opt.zero_grad()
                self.loss().backward()
                self.opt.step()
        return [p.detach().clone() for p in self.model.parameters()]


class LeavesAutocastEachStep(NeverLeavesAutocast):
    def run(self):
        for now in range(self.n_steps):
            self.now = now
            with torch.autocast("cpu", self.dtype):
                self.opt.zero_grad()
                self.loss().backward()
                self.opt.step()
        return [p.detach().clone() for p in self.model.parameters()]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ScheduleRunsAhead, [("HC214", "warning", 0), WHOLE]),
        (FusedScheduleRunsAhead, [("HC214", "warning", 0), WHOLE]),
        (LongScheduleRunsAhead, [("HC214", "note", 0), WHOLE]),
        (AverageRunsAhead, [("HC214", "note", 0), WHOLE]),
        (ResumesWithoutScaler, [("HC215", "warning", 0)]),
        (ResumesWithFittingScaler, [("HC215", "note", 0)]),
        (BackwardInside, [("HC216", "note", 0)]),
        (BackwardInsideOverflows, [("HC216", "warning", 2)]),  # before, it is not finite outside either
        (ScalerWithBfloat16, [("HC217", "note", 0)]),
        (NeverLeavesAutocast, [("HC216", "note", 0), ("HC218", "error", 1)]),
        (LeavesAutocastEachStep, [("HC216", "note", 0)]),
        (ScheduleHeldBack, []),
        (ScheduleByEpoch, []),
        (ResumesWell, []),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_is_only_a_fact_is_a_note(program, expected, tmp_path):
    assert found(program, tmp_path / "run") == expected


def test_the_counts_of_the_whole_run_are_told_with_the_finding(tmp_path):
    class Twenty(ScheduleRunsAhead):
        n_steps = 20

    found(Twenty, tmp_path / "run")

    recorded = open_run(tmp_path / "run")
    n_skipped = sum(record.skipped for _, record in recorded.step_records())
    told = [f for f in diagnose(recorded).findings if f.code == "HC214"]
    assert n_skipped
    assert [f.severity for f in told] == ["warning"]
    assert f"in all, {20 - n_skipped} updates against 20 steps of LinearLR" in told[0].then


class ClipsRightly(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-4)  # nearly everything is cut off, on purpose
        self.scaler.step(self.opt)
        self.scaler.update()


class ClipsToAScaledNorm(Program):
    """Right without unscale_: the threshold carries the scale too. The gradients here are 100 times the threshold."""

    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01 * self.scaler.get_scale())
        self.scaler.step(self.opt)
        self.scaler.update()


class OnlyMeasures(Program):
    def step(self):
        self.scaler.scale(self.loss()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), float("inf"))
        self.scaler.step(self.opt)
        self.scaler.update()


class Accumulates(Program):
    def step(self):
        for _ in range(4):
            self.scaler.scale(self.loss() / 4).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class AccumulatesAndDividesGradients(Program):
    """Divides by the number of tokens, which happens to be the scale, and logs the scale once in a while."""

    def step(self):
        for _ in range(4):
            self.scaler.scale(self.loss() * START).backward()
        for p in self.model.parameters():
            p.grad /= START
        if self.now % 3 == 0:
            self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()


class TwoOptimizersOneScaler(Program):
    """They share one backward; the scale grows every second step."""

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        self.opt = torch.optim.SGD(self.model[0].parameters(), lr=1e-3)
        self.opt2 = torch.optim.AdamW(self.model[2].parameters(), lr=1e-3)

    def step(self):
        self.opt2.zero_grad()
        self.scaler.scale(self.loss()).backward()
        for opt in (self.opt, self.opt2):
            self.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g["params"]], 1.0)
        self.scaler.step(self.opt)
        self.scaler.step(self.opt2)
        self.scaler.update()


class Adversarial(Program):
    """Two losses, two optimizers, one scaler, updated after each; the second backward also reaches the first's."""

    set_to_none = True

    def __init__(self):
        super().__init__()
        self.critic = nn.Linear(1, 1)
        self.opt2 = torch.optim.SGD(self.critic.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)

    def step(self):
        x = self.centers[:16]
        with torch.autocast("cpu", torch.float16):
            fake = self.model(x)
            loss = self.critic(fake.detach()).float().pow(2).mean()
        self.opt2.zero_grad(self.set_to_none)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt2)
        self.scaler.step(self.opt2)
        self.scaler.update()
        with torch.autocast("cpu", torch.float16):
            loss = (1 - self.critic(fake)).float().pow(2).mean()
        self.opt.zero_grad(self.set_to_none)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        self.scaler.step(self.opt)
        self.scaler.update()


class AdversarialZeroed(Adversarial):
    set_to_none = False


class OnlyOneLossScaled(Adversarial):
    """The critic trains in float32 without the scaler."""

    def step(self):
        x = self.centers[:16]
        self.opt2.zero_grad()
        with torch.autocast("cpu", torch.float16):
            fake = self.model(x)
        self.critic(fake.detach().float()).pow(2).mean().backward()
        with torch.autocast("cpu", torch.float16):
            loss = (1 - self.critic(fake)).float().pow(2).mean()
        self.opt2.step()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class Disabled(Program):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


class ScalesByHand(Program):
    def step(self):
        (self.loss() * 256.0).backward()
        for p in self.model.parameters():
            p.grad /= 256.0
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()


class MultipliesByTheScaleByHand(Program):
    """`scaler.step` with the multiplication written out, in several ways."""

    def step(self):
        loss = self.loss()
        self.scaler.scale(loss)
        scale = self.scaler.get_scale()
        ways = [
            scale * loss,
            loss * self.scaler._scale,
            (loss * scale + 0.0) / 2,
            torch.stack([loss, loss]).mul(scale).mean(),
        ]
        ways[self.now % 4].backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class OwnLossFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, scale):
        ctx.scale = scale
        return loss * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class ScalesInAFunction(Program):
    def step(self):
        self.scaler.scale(torch.zeros(()))
        OwnLossFunction.apply(self.loss(), self.scaler.get_scale()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


class SkippedByUs(Program):
    """Hypocenter skips an update on request, and the schedule goes on: that is nobody's fault."""

    n_steps = 16

    def __init__(self):
        super().__init__()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.opt, start_factor=0.1, total_iters=20)

    def step(self):
        x = self.centers[:16] / (0.0 if self.now in (2, 3, 4) else 1.0)
        self.model(x).pow(2).mean().backward()
        self.opt.step()
        self.scheduler.step()


class BacksOff(Program):
    """The usual start: too high, five skipped updates, then it fits."""

    init_scale = 2.0**22
    n_steps = 16

    def step(self):
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


HEALTHY = [
    ClipsRightly, ClipsToAScaledNorm, OnlyMeasures, Accumulates, AccumulatesAndDividesGradients, TwoOptimizersOneScaler,
    Adversarial, AdversarialZeroed, OnlyOneLossScaled, Disabled, ScalesByHand, MultipliesByTheScaleByHand,
    ScalesInAFunction, SkippedByUs, BacksOff, Program,
]  # fmt: skip


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_right_use_is_left_in_peace(program, tmp_path):
    assert found(program, tmp_path / "run") == []


ALL = [
    *(ClipsTooEarly, ClipsValuesTooEarly, DividesByHand, UnscalesTooEarly, UpdatesBetweenTwoOptimizers, NeverScales),
    *(FusedScheduleRunsAhead, AverageRunsAhead, ResumesWithoutScaler, BackwardInside, BackwardInsideOverflows),
    *(NeverLeavesAutocast, LeavesAutocastEachStep, Adversarial, TwoOptimizersOneScaler, BacksOff),
]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_training_is_bit_identical(program, tmp_path):
    trained()
    plain = program()
    weights = plain.run()
    random = torch.get_rng_state()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = program()
        watched_weights = watched.run()

    assert all(torch.equal(a, b) for a, b in zip(weights, watched_weights, strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert str(plain.opt.state_dict()) == str(watched.opt.state_dict())
    assert plain.scaler.state_dict() == watched.scaler.state_dict()
    if isinstance(plain, ScheduleRunsAhead):
        assert plain.scheduler.state_dict() == watched.scheduler.state_dict()


def test_everything_patched_is_put_back(tmp_path):
    names = ("__init__", "scale", "unscale_", "update", "load_state_dict", "get_scale", "step")
    schedulers = torch.optim.lr_scheduler
    before = [getattr(torch.amp.GradScaler, name) for name in names]
    before += [nn.utils.clip_grad_value_, schedulers.LRScheduler.step, schedulers.SequentialLR.step]

    with hypocenter.watch(out=str(tmp_path / "run")):
        Program().run()

    after = [getattr(torch.amp.GradScaler, name) for name in names]
    assert [*after, nn.utils.clip_grad_value_, schedulers.LRScheduler.step, schedulers.SequentialLR.step] == before


def test_an_error_in_an_observer_leaves_training_alone(tmp_path, monkeypatch, capsys):
    from hypocenter.session.observers.scaling import Scaling

    monkeypatch.setattr(Scaling, "scaled", lambda self, scaler, outputs: 1 / 0)
    plain = Program().run()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = Program().run()

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert capsys.readouterr().err.count("no longer followed after an internal error") == 1
