"""Optimizers that evaluate the loss several times in one update: closures, LBFGS, sharpness-aware steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.session.evaluations import _Parameters

X, Y = torch.linspace(-1, 1, 64).reshape(16, 4), torch.linspace(0, 1, 16).reshape(16, 1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def alarms(out):
    """(step, op, cause) of what is no note."""
    return [(f.step, f.op, f.cause) for f in diagnose(open_run(out)).findings if f.severity != "note"]


def steps(out):
    return [record.step for _, record in open_run(out).step_records()]


def by_lbfgs(bad_call=None, n_updates=4, *, zeroes=True, returns="loss", as_keyword=False, line_search=None):
    """Train with a closure; returns what `step` gave, the calls at the end of each update, and the parameters."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, line_search_fn=line_search)
    n_calls = 0

    def closure():
        nonlocal n_calls
        if zeroes:
            optimizer.zero_grad()
        loss = (model(X) - Y).pow(2).mean()
        loss = torch.sqrt(-loss - 1) if n_calls == bad_call else loss
        n_calls += 1
        loss.backward()
        return float(loss.detach()) if returns == "float" else loss

    given, after = [], []
    for _ in range(n_updates):
        loss = optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
        given.append(float(torch.as_tensor(loss).detach()))
        after.append(n_calls)
    return given, after, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("bad_call", [0, 1, 4, 7, 11])
def test_the_evaluation_that_failed_is_found_in_its_update(tmp_path, bad_call):
    with hypocenter.watch(out=str(tmp_path / "run")):
        _, after, _ = by_lbfgs(bad_call)

    step = next(i for i, n in enumerate(after) if bad_call < n)
    assert [(s, op) for s, op, _ in alarms(tmp_path / "run")] == [(step, "aten.sqrt.default")]


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("level", ["sentinel", "modules"])
def test_healthy_updates_are_steps_and_nothing_is_said_of_them(tmp_path, level, line_search):
    plain = by_lbfgs(line_search=line_search)

    with hypocenter.watch(out=str(tmp_path / "run"), level=level):
        watched = by_lbfgs(line_search=line_search)

    assert steps(tmp_path / "run") == [0, 1, 2, 3]
    assert {record.n_microbatches for _, record in open_run(tmp_path / "run").step_records()} == {1}
    assert alarms(tmp_path / "run") == []
    assert plain[:2] == watched[:2]
    assert all(torch.equal(a, b) for a, b in zip(plain[2], watched[2], strict=True))


def test_a_failure_leaves_training_bit_identical(tmp_path):
    plain = by_lbfgs(6)

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = by_lbfgs(6)

    assert str(plain) == str(watched)


def test_a_closure_that_never_zeroes_and_gives_a_float(tmp_path):
    plain = by_lbfgs(zeroes=False, returns="float", as_keyword=True)

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = by_lbfgs(zeroes=False, returns="float", as_keyword=True)

    assert str(plain) == str(watched)
    assert steps(tmp_path / "run") == [0, 1, 2, 3]
    assert alarms(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("bad_step", [0, 2, 5])
def test_a_closure_of_an_optimizer_that_calls_it_once(tmp_path, kind, bad_step):
    model = network()
    optimizer = kind(model.parameters(), 0.01)

    def closure():
        optimizer.zero_grad()
        loss = (model(X) - Y).pow(2).mean()
        loss = torch.log(loss * 0) if step == bad_step else loss
        loss.backward()

    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(bad_step + 2):  # noqa: B007 - the closure reads it
            assert optimizer.step(closure) is None

    assert alarms(tmp_path / "run") == [(bad_step, "aten.log.default", "log-of-zero")]


@pytest.mark.parametrize("bad_call", [1, 6, 8])
def test_what_a_closure_raises_comes_out_and_training_goes_on(tmp_path, bad_call):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    n_calls = n_raised = 0

    def closure():
        nonlocal n_calls
        n_calls += 1
        optimizer.zero_grad()
        loss = (model(X) - Y).pow(2).mean()
        loss.backward()
        if n_calls == bad_call:
            raise KeyError("mine")
        return loss

    with hypocenter.watch(out=str(tmp_path / "run"), level="modules"):
        for _ in range(5):
            try:
                optimizer.step(closure)
            except KeyError:
                n_raised += 1

    assert n_raised == 1
    assert alarms(tmp_path / "run") == []
    assert steps(tmp_path / "run") == list(range(4 if bad_call == 1 else 5))  # in its first call nothing has moved


class Sharpness(torch.optim.Optimizer):
    """SAM (Foret et al. 2021) as it is usually written: two backwards an update, between them the parameters move."""

    def __init__(self, params, *, through_data):
        super().__init__(params, {"rho": 0.05, "lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups
        self._through_data = through_data

    @torch.no_grad()
    def first_step(self):
        held = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for p in held:
            self.state[p]["old"] = p.data.clone()
            (p.data if self._through_data else p).add_(p.grad * (0.05 / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


KINDS = ["in place", "through data", "with closure"]


def by_sharpness(kind, bad_step=None, bad_backward="first", n_steps=7):
    model = network()
    optimizer = Sharpness(model.parameters(), through_data=kind == "through data")

    def evaluate(step, name):
        loss = (model(X * (step + 1)) - Y).pow(2).mean()
        if (step, name) == (bad_step, bad_backward):
            loss = torch.log(loss * 0)
        loss.backward()
        return loss

    for step in range(n_steps):
        evaluate(step, "first")
        if kind == "with closure":
            optimizer.step(lambda step=step: evaluate(step, "second"))
        else:
            optimizer.first_step()
            evaluate(step, "second")
            optimizer.second_step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_sharpness_aware_run_is_silent_and_bit_identical(tmp_path, kind):
    plain = by_sharpness(kind)

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = by_sharpness(kind)

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert steps(tmp_path / "run") == list(range(7))
    assert alarms(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad_backward", ["first", "second"])
@pytest.mark.parametrize("bad_step", [0, 1, 3, 6])
def test_the_backward_that_failed_is_done_again_before_the_parameters_move(tmp_path, kind, bad_backward, bad_step):
    with hypocenter.watch(out=str(tmp_path / "run")):
        by_sharpness(kind, bad_step, bad_backward)

    assert alarms(tmp_path / "run") == [(bad_step, "aten.log.default", "log-of-zero")]


def test_a_micro_batch_whose_parameters_were_written_since_accuses_nobody(tmp_path):
    """The gradient goes bad in a hook of the user's, and the parameters move before the update: who knows."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(6):
            optimizer.zero_grad()
            (model(X) - Y).pow(2).mean().backward()
            if step == 4:
                model[0].weight.grad.fill_(float("nan"))
                with torch.no_grad():
                    model[2].weight.mul_(0.9)
            optimizer.step()

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.severity != "note"]
    assert [(f.step, f.cause, f.confidence) for f in found] == [(4, "unknown", "possible")]


def test_a_gathered_parameter_that_is_let_go_has_not_moved():
    parameter = nn.Parameter(torch.randn(64))
    before = _Parameters.now([parameter])

    parameter.untyped_storage().resize_(0)  # as FSDP2 does when it shards again

    assert not before.have_moved()
