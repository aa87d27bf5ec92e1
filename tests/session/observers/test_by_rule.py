"""The law of the update: what torch's rules make balances to rounding, in every form that they have; faults do not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.detect.law_rows import BALANCED, NOT_BY_RULE, UPDATE
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding, Reading
from hypocenter.record.reader import open_run

N_STEPS, AT = 16, 9
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Module):
    """Its norm begins at 1 and 0, and one parameter has no gradient before step 5."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.norm, self.head, self.late = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(12, 12)
        self.is_late = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens))
        return self.head(hidden + self.late(hidden) if self.is_late else hidden)


def train(
    out: Path,
    make: Make,
    *,
    dtype: torch.dtype = torch.float32,
    before_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda *_: None,
    after_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda *_: None,
    scaler: torch.amp.GradScaler | None = None,
    is_closure: bool = False,
    n_steps: int = N_STEPS,
) -> list[Finding]:
    torch.manual_seed(0)
    model = Net().to(dtype)
    optimizer = make(model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        tokens = torch.randint(0, 20, (16,))
        loss = functional.cross_entropy(model(tokens).float(), (tokens + 1) % 20)
        (loss if scaler is None else scaler.scale(loss)).backward()
        return loss

    with hypocenter.watch(out=str(out), audit="every=1"):
        for step in range(n_steps):
            model.is_late = step >= 5
            if not is_closure:
                closure()
            before_step(step, model, optimizer)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step(closure) if is_closure else optimizer.step()
            after_step(step, model, optimizer)
    return list(diagnose(open_run(out)).findings)


def rows(out: Path, port: str) -> list[Reading]:
    found = [row for row in open_run(out).readings() if row.port == port]
    return [row for row in found if port != BALANCED or row.module == UPDATE]


def said(found: list[Finding]) -> list[Finding]:
    return [f for f in found if f.code == "HC235"]


def _of(kind: type[torch.optim.Optimizer], **options: Any) -> Make:
    return lambda model: kind(model.parameters(), **options)


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
FORMS: dict[str, Make] = {
    "sgd": _of(SGD, lr=0.1),
    "sgd momentum decay": _of(SGD, lr=0.1, momentum=0.9, weight_decay=0.01, dampening=0.1),
    "sgd nesterov foreach": _of(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd maximize fused": _of(SGD, lr=1e-3, maximize=True, fused=True),
    "adam decay": _of(ADAM, lr=1e-2, weight_decay=0.1),
    "adam amsgrad foreach": _of(ADAM, lr=1e-2, amsgrad=True, foreach=True),
    "adam maximize": _of(ADAM, lr=1e-4, maximize=True),
    "adam rate in a tensor": _of(ADAM, lr=torch.tensor(1e-2)),
    "adamw": _of(ADAMW, lr=1e-2),
    "adamw fused": _of(ADAMW, lr=1e-2, fused=True),
    "adamw foreach amsgrad": _of(ADAMW, lr=1e-2, foreach=True, amsgrad=True),
    "adamw large eps": _of(ADAMW, lr=1e-5, eps=1e-2, betas=(0.0, 0.5)),
    "adagrad": _of(torch.optim.Adagrad, lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
    "rmsprop": _of(torch.optim.RMSprop, lr=1e-3, centered=True, momentum=0.9, weight_decay=0.1),
    "adamax": _of(torch.optim.Adamax, lr=1e-2, weight_decay=0.1),
    "nadam": _of(torch.optim.NAdam, lr=1e-2),
    "nadam decoupled foreach": _of(
        torch.optim.NAdam, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True, foreach=True
    ),
    "radam": _of(torch.optim.RAdam, lr=1e-2, weight_decay=0.1),
    "radam foreach": _of(torch.optim.RAdam, lr=1e-2, betas=(0.9, 0.9), foreach=True),
    "rmsprop foreach": _of(torch.optim.RMSprop, lr=1e-3, foreach=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_torchs_rules_obeys(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    if "sgd" in form and "fused" in form and dtype == torch.bfloat16:
        pytest.skip("torch 2.13's fused SGD without momentum leaves most bfloat16 weights on the CPU as they are")
    found = train(tmp_path / "run", FORMS[form], dtype=dtype)

    looked = rows(tmp_path / "run", BALANCED)
    assert said(found) == []
    assert [row.summary.n for row in looked] == [5] * 5 + [7] * (N_STEPS - 5)
    assert [row.summary.sum for row in looked] == [row.summary.n for row in looked]


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
def test_powers_of_betas_in_float32(tmp_path: Path, foreach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device with `capturable`; while the rate rises they would obey at first and be off later."""
    module = sys.modules["torch.optim.adam"]
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **_: ["cpu"])

    def rise(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 1e-8 * 3.0**step

    make = _of(ADAMW, lr=1e-8, capturable=True, foreach=foreach)
    found = train(tmp_path / "run", make, after_step=rise)

    assert said(found) == []
    assert all(row.summary.sum == row.summary.n for row in rows(tmp_path / "run", BALANCED))


@pytest.mark.night
def test_groups_a_schedule_and_a_rate_that_falls(tmp_path: Path) -> None:
    def make(model: Any) -> torch.optim.Optimizer:
        rest = [p for name, p in model.named_parameters() if "embed" not in name]
        return ADAMW([{"params": model.embed.parameters(), "lr": 1e-3, "weight_decay": 0.0}, {"params": rest}], lr=1e-2)

    def fall(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.8

    assert said(train(tmp_path / "run", make, after_step=fall)) == []
    assert all(row.summary.sum == row.summary.n for row in rows(tmp_path / "run", BALANCED))


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_scaler_that_skips(tmp_path: Path, fused: bool) -> None:
    def overflow(step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if step == 7:
            model.head.weight.grad[0, 0] = torch.inf

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    found = train(tmp_path / "run", _of(ADAMW, lr=1e-2, fused=fused), scaler=scaler, before_step=overflow)

    looked = rows(tmp_path / "run", BALANCED)
    assert said(found) == []
    assert len(looked) == N_STEPS - 1
    assert all(row.summary.sum == row.summary.n for row in looked)


def test_a_closure(tmp_path: Path) -> None:
    assert said(train(tmp_path / "run", _of(ADAMW, lr=1e-2), is_closure=True)) == []
    looked = rows(tmp_path / "run", BALANCED)
    assert len(looked) == N_STEPS
    assert all(row.summary.sum == row.summary.n > 0 for row in looked)


class Own(torch.optim.AdamW):
    """An optimizer of the program's own: what it means is not known."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.mul_(1.0 if self.param_groups[0]["params"][0].sum() > 1e9 else 0.99)


@pytest.mark.slow
@pytest.mark.parametrize("make", [_of(torch.optim.LBFGS, lr=0.1), _of(torch.optim.Rprop)], ids=["LBFGS", "Rprop"])
def test_rules_that_fit_no_class(tmp_path: Path, make: Make) -> None:
    found = train(tmp_path / "run", make, is_closure=True)

    assert said(found) == []


class Signed(torch.optim.Optimizer):
    """As people write their own: a mean of gradients, its sign, decay of the weight."""

    def __init__(self, parameters: Any, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "factor": 0.9, "shrink": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (each for each in group["params"] if each.grad is not None):
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(group["factor"]).add_(p.grad, alpha=1 - group["factor"])
                p.mul_(1 - group["lr"] * group["shrink"]).add_(mean.sign(), alpha=-group["lr"])


def _fall(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.9


LEARNED: dict[str, Make] = {
    "signed": _of(Signed),
    "own": _of(Own, lr=1e-2),
    "adadelta": _of(torch.optim.Adadelta, lr=1.0),
    "asgd": _of(torch.optim.ASGD, lr=1e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rule", LEARNED)
def test_of_a_rule_that_its_steps_tell_nothing_is_said(tmp_path: Path, rule: str, dtype: torch.dtype) -> None:
    found = train(tmp_path / "run", LEARNED[rule], dtype=dtype, after_step=_fall)

    looked = rows(tmp_path / "run", BALANCED)
    assert said(found) == []
    assert all(row.summary.sum >= row.summary.n - 2 for row in looked)  # the late ones count other steps
    assert dtype != torch.float32 or looked[-1].summary.sum >= 5


LEFT: dict[str, tuple[Callable[[Any, torch.optim.Optimizer], None], str, str]] = {
    "rows of zeros": (lambda m, o: m.embed.weight[:4].zero_(), "embed.weight", "value"),
    "a mean": (lambda m, o: o.state[m.head.weight]["mean"].mul_(1.1), "head.weight", "mean"),
    "decay": (lambda m, o: m.norm.weight.mul_(0.99), "norm.weight", "value"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", LEFT)
def test_a_parameter_that_leaves_a_learned_rule_is_found(tmp_path: Path, fault: str) -> None:
    act, name, port = LEFT[fault]

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer, n = Signed(model.parameters()), [-1]

        def hook(*_: Any) -> None:
            n[0] += 1
            if n[0] == AT:
                with torch.no_grad():
                    act(model, optimizer)

        optimizer.register_step_post_hook(hook)
        return optimizer

    found = said(train(tmp_path / "run", make))

    assert [(f.step, f.param, f.port, f.severity, f.confidence) for f in found] == [(AT, name, port, "note", "likely")]
    assert "by its first steps" in found[0].why[0]


def test_a_rate_of_its_own_for_a_parameter_is_a_habit(tmp_path: Path) -> None:
    class Scaled(Signed):
        """Each parameter's step has a size of its own, which changes."""

        n = 0

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            before = [p.clone() for p in self.param_groups[0]["params"]]
            super().step()
            self.n += 1
            for i, (p, was) in enumerate(zip(self.param_groups[0]["params"], before, strict=True)):
                p.copy_(was + (p - was) / (1 + (i * self.n) % 5))

    assert said(train(tmp_path / "run", _of(Scaled))) == []


@pytest.mark.night
def test_sparse_gradients_are_not_looked_at(tmp_path: Path) -> None:
    def make(model: Any) -> torch.optim.Optimizer:
        model.embed.sparse = True
        return SGD(model.parameters(), lr=0.1)

    assert said(train(tmp_path / "run", make)) == []
    assert rows(tmp_path / "run", BALANCED)[0].summary.n == 4


@pytest.mark.night
def test_a_clip_inside_the_step_that_acts_now_and_then(tmp_path: Path) -> None:
    def make(model: Any) -> torch.optim.Optimizer:
        optimizer, n = SGD(model.parameters(), lr=0.1), [0]

        def clip(*_: Any) -> None:
            n[0] += 1
            if n[0] > 6:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.param_groups[0]["lr"] = 0.2

        optimizer.register_step_pre_hook(clip)
        return optimizer

    assert said(train(tmp_path / "run", make)) == []
    assert all(row.summary.sum == row.summary.n for row in rows(tmp_path / "run", BALANCED))


def test_what_is_always_done_inside_the_step_is_a_habit(tmp_path: Path) -> None:
    def make(model: Any) -> torch.optim.Optimizer:
        optimizer = ADAMW(model.parameters(), lr=1e-2)

        def clamp(*_: Any) -> None:
            for p in model.parameters():
                p.data.clamp_(-0.01, 0.01)

        optimizer.register_step_post_hook(clamp)
        return optimizer

    assert said(train(tmp_path / "run", make)) == []
    assert rows(tmp_path / "run", BALANCED)[3].summary.sum == 0


def _in_step(act: Callable[[Any, torch.optim.Optimizer], None], *, is_once: bool = True) -> Make:
    """A fault inside the step, in a hook that torch calls before it is over."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer, n = ADAMW(model.parameters(), lr=1e-2), [-1]

        def hook(*_: Any) -> None:
            n[0] += 1
            if n[0] == AT if is_once else n[0] >= AT:
                with torch.no_grad():
                    act(model, optimizer)

        optimizer.register_step_post_hook(hook)
        return optimizer

    return make


FAULTS: dict[str, tuple[Callable[[Any, torch.optim.Optimizer], None], str, str]] = {
    "decay twice": (lambda m, o: m.head.weight.mul_(1 - 1e-2 * 1e-2), "head.weight", "value"),
    "a weight that is cast": (lambda m, o: m.norm.weight.copy_(m.norm.weight.bfloat16()), "norm.weight", "value"),
    "rows of zeros": (lambda m, o: m.embed.weight[:4].zero_(), "embed.weight", "value"),
    "a moment": (lambda m, o: o.state[m.head.weight]["exp_avg"].mul_(1.01), "head.weight", "exp_avg"),
    "a counter": (lambda m, o: o.state[m.head.bias]["step"].add_(1), "head.bias", "step"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_changes_a_result_inside_the_step_is_found(tmp_path: Path, fault: str) -> None:
    act, name, port = FAULTS[fault]

    found = said(train(tmp_path / "run", _in_step(act)))

    assert [(f.step, f.param, f.port, f.severity) for f in found] == [(AT, name, port, "note")]
    assert found[0].source is not None
    assert found[0].source.file.endswith("test_by_rule.py")


@contextlib.contextmanager
def patched(change: Callable[[dict[str, Any]], None]) -> Generator[None, None, None]:
    """The program has put something of its own in the place of torch's functional form."""
    import torch.optim.adam as module

    inner, n = module.adam, [-1]

    def adam(params: Any, grads: Any, *args: Any, **options: Any) -> None:
        n[0] += 1
        if n[0] >= AT:
            change(options)
        inner(params, grads, *args, **options)

    module.adam = adam
    try:
        yield
    finally:
        module.adam = inner


@pytest.mark.slow
@pytest.mark.parametrize("times", [2.0, 0.0])
def test_a_rate_that_is_another_inside_the_step(tmp_path: Path, times: float) -> None:
    with patched(lambda options: options.update(lr=options["lr"] * times)):
        found = said(train(tmp_path / "run", _of(ADAMW, lr=1e-2, weight_decay=0.0)))

    assert [(f.step, f.severity, f.port) for f in found] == [(AT, "warning", "value")]
    assert found[0].actual == pytest.approx(times, abs=1e-3)
    assert ("is 2 times" if times else "is not updated") in found[0].title


def test_another_decay_inside_the_step_is_no_multiple(tmp_path: Path) -> None:
    with patched(lambda options: options.update(weight_decay=0.5)):
        found = said(train(tmp_path / "run", _of(ADAMW, lr=1e-2)))

    assert [(f.step, f.severity, f.actual) for f in found] == [(AT, "warning", None)]


def test_at_steps_that_are_not_audited_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypocenter.session.torch_by_rule import ByRule

    told: list[int] = []
    monkeypatch.setattr(ByRule, "before_rule", lambda self, optimizer, step: told.append(step))
    torch.manual_seed(0)
    model = Net()
    optimizer = ADAMW(model.parameters(), lr=1e-2)
    with hypocenter.watch(out=str(tmp_path / "run"), audit="every=4"):
        for _ in range(8):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.arange(20)), torch.arange(20)).backward()
            optimizer.step()

    assert told == [0, 4]
    assert rows(tmp_path / "run", NOT_BY_RULE) == []
