"""Whole sessions on small programs: what is found, and that training is left alone."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.reader import open_run


def evidence(out):
    return [msgspec.json.decode(path.read_bytes(), type=Evidence) for _, path in open_run(out).evidence_files()]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 1)

    def forward(self, x, bad=False):
        h = self.head(self.body(x))
        return torch.log(h * 0) if bad else h


def train(n_steps=5, bad_step=None, accumulate=1, bad_microbatch=0, skip_bad=False, evaluate=False):
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(n_steps):
        optimizer.zero_grad()
        for microbatch in range(accumulate):
            x, y = torch.randn(8, 6), torch.randn(8, 1)
            loss = nn.functional.mse_loss(model(x, bad=step == bad_step and microbatch == bad_microbatch), y)
            loss.backward()
            losses.append(float(loss.detach()))
        if not (skip_bad and step == bad_step):
            optimizer.step()
        if evaluate:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
    return losses, [p.detach().clone() for p in model.parameters()], model


@pytest.mark.slow
@pytest.mark.parametrize("level", ["sentinel", "modules", "ops", "tensors"])
def test_training_is_bit_identical_with_a_failure_replayed_in_the_middle(tmp_path, level):
    plain = train(bad_step=2, accumulate=2, skip_bad=True, evaluate=True)

    with hypocenter.watch(level=level, out=str(tmp_path / "run")):
        watched = train(bad_step=2, accumulate=2, skip_bad=True, evaluate=True)

    assert str(plain[0]) == str(watched[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))


def test_step_microbatch_and_site_of_a_failure(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        train(bad_step=3, accumulate=4, bad_microbatch=2, evaluate=True)

    (found,) = evidence(tmp_path / "run")
    assert (found.step, found.microbatch, found.reproduced) == (3, 2, True)
    assert found.origin is not None
    assert (found.origin.op, found.origin.site) == ("aten.log.default", "")
    assert found.origin.source.text == "return torch.log(h * 0) if bad else h"


def test_a_healthy_run_has_steps_and_no_evidence(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        train(accumulate=2, evaluate=True)

    run = open_run(tmp_path / "run")
    steps = [record for _, record in run.step_records()]
    assert [s.step for s in steps] == [0, 1, 2, 3, 4]
    assert {s.n_microbatches for s in steps} == {2}
    assert run.evidence_files() == []


@pytest.mark.night
def test_a_loss_that_the_program_gave_up_on_is_examined_at_the_end(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import torch, hypocenter
        hypocenter.watch(out="run")
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            y = model(torch.ones(2, 3))
            loss = (y.log() if step == 2 else y * 1).sum() * 0 + (y * (float("inf") if step == 2 else 1)).sum()
            if not torch.isfinite(loss):
                raise FloatingPointError("loss")
            loss.backward()
            optimizer.step()
        """)
    )

    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "FloatingPointError" in done.stderr
    found, death = sorted(evidence(tmp_path / "run"), key=lambda one: one.trigger == "crash")
    assert (found.step, found.trigger, death.step) == (2, "nonfinite-loss", 2)
    (told,) = diagnose(open_run(tmp_path / "run")).findings
    assert told.code == "HC102"
    assert any("the program died of FloatingPointError at step 2" in line for line in told.then)


def test_skip_leaves_the_parameters_as_they_were(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run"), on_finding="skip"):
        _, parameters, _ = train(bad_step=2)

    assert all(bool(torch.isfinite(p).all()) for p in parameters)
    assert [s.skipped for _, s in open_run(tmp_path / "run").step_records()] == [False, False, True, False, False]


def test_a_watch_inside_a_watch_is_the_same_session_and_does_not_end_it(tmp_path):
    with hypocenter.watch(out=tmp_path / "run") as outer:
        with hypocenter.watch(out=tmp_path / "other") as inner:
            train(n_steps=2)
        train(n_steps=2)

    assert inner.directory == outer.directory
    assert len(open_run(tmp_path / "run").step_records()) == 4


def test_tracing_and_vmap_are_left_alone(tmp_path):
    model = nn.Linear(3, 1)
    x = torch.randn(2, 3)
    plain = str(torch.jit.trace(model, x).graph)

    with hypocenter.watch(out=tmp_path / "run"):
        watched = str(torch.jit.trace(model, x).graph)
        batched = torch.vmap(model)(x)

    assert plain.count("aten::") == watched.count("aten::")
    assert torch.allclose(batched, model(x))


def test_stop_ends_training_with_exit_code_1(tmp_path):
    with pytest.raises(SystemExit) as stopped, hypocenter.watch(out=str(tmp_path / "run"), on_finding="stop"):
        train(bad_step=2)

    assert stopped.value.code == 1
    assert [s.step for _, s in open_run(tmp_path / "run").step_records()] == [0, 1, 2]


def test_stop_after_batch(tmp_path):
    with pytest.raises(SystemExit) as stopped, hypocenter.watch(out=str(tmp_path / "run"), stop_after_batch=2):
        train()

    assert stopped.value.code == 0


def test_traced_batches_have_module_rows_and_others_have_not(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run"), trace_batches=(1, 3)):
        train()

    steps = {r.step for r in open_run(tmp_path / "run").readings() if r.phase == "forward"}
    assert steps == {1, 3}


def test_a_probe_is_recorded_and_returns_its_argument(tmp_path):
    class Probed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, x):
            return hypocenter.probe(self.fc(x), "after fc")

    model = Probed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3)
    assert hypocenter.probe(x, "no session") is x

    with hypocenter.watch(model, out=str(tmp_path / "run")):
        model(x).sum().backward()
        optimizer.step()

    assert any("after fc" in r.site and r.port == "probe" for r in open_run(tmp_path / "run").readings())


def test_an_internal_failure_switches_off_says_so_once_and_training_goes_on(tmp_path, capsys, monkeypatch):
    plain = train()
    monkeypatch.setattr(
        "hypocenter.session.sentinel.Sentinel.gradients", lambda *a, **k: (_ for _ in ()).throw(KeyError("planted"))
    )

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = train()

    assert str(plain[0]) == str(watched[0])
    assert capsys.readouterr().err.count("switched off") == 1


def test_every_hook_and_patch_is_taken_back(tmp_path):
    before = (
        torch.autograd.backward,
        torch.nn.utils.clip_grad_norm_,
        torch.amp.GradScaler.step,
        nn.Module.compile,
        len(torch.nn.modules.module._global_forward_hooks),
        len(torch.nn.modules.module._global_forward_pre_hooks),
    )

    for level in ("sentinel", "tensors"):
        with hypocenter.watch(out=str(tmp_path / level), level=level):
            _, _, model = train()

    after = (
        torch.autograd.backward,
        torch.nn.utils.clip_grad_norm_,
        torch.amp.GradScaler.step,
        nn.Module.compile,
        len(torch.nn.modules.module._global_forward_hooks),
        len(torch.nn.modules.module._global_forward_pre_hooks),
    )
    assert before == after
    assert not model._forward_hooks


def test_scaler_back_off_is_not_a_failure(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(20):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(16, 8)).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    run = open_run(tmp_path / "run")
    steps = [s for _, s in run.step_records()]
    assert steps[0].skipped
    assert not steps[-1].skipped
    assert steps[0].loss_scale == 2.0**20
    assert run.evidence_files() == []


def test_a_replay_that_is_not_possible_says_why_and_the_module_calls_are_still_blamed(tmp_path):
    def elsewhere(x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.mul, x, 1).result()

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(3):
            loss = elsewhere(model(torch.randn(8, 6), bad=step == 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    (found,) = evidence(tmp_path / "run")
    assert found.origin is not None
    assert found.origin.op == "aten.log.default"
    assert any("cannot repeat" in note for note in found.notes)


class Handing(torch.autograd.Function):
    """A loss whose gradient was made before, as of one that is computed in chunks."""

    @staticmethod
    def forward(ctx, hidden, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None


@pytest.mark.parametrize("is_bad_in", ["forward", "gradient"])
def test_a_loss_that_a_function_of_the_program_hands_on_is_replayed(tmp_path, is_bad_in):
    torch.manual_seed(0)
    model, head = Net(), nn.Linear(1, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-2)
    with hypocenter.watch(out=str(tmp_path / "run")):
        for step in range(3):
            hidden = model(torch.randn(8, 6), bad=step == 1 and is_bad_in == "forward")
            inner = hidden.detach().requires_grad_()
            loss = head(inner).pow(2).mean()
            loss.backward()
            gradient = inner.grad / (0.0 if step == 1 and is_bad_in == "gradient" else 1.0)
            Handing.apply(hidden, gradient, loss.detach()).backward()
            optimizer.step()
            optimizer.zero_grad()

    (found,) = evidence(tmp_path / "run")
    assert (found.step, found.reproduced) == (1, True)
    assert found.origin is not None
    assert found.origin.op == {"forward": "aten.log.default", "gradient": "aten.div.Tensor"}[is_bad_in]


def test_gradients_that_are_finite_alone_and_not_together(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(4):
                (model(torch.full((2, 4), 1.0).half()).sum() * (15000.0 if step == 2 else 1.0)).backward()
            optimizer.step()

    (found,) = diagnose(open_run(tmp_path / "run")).findings
    assert (found.step, found.cause, found.confidence) == (2, "accumulation-overflow", "proven")
    assert (found.param, found.limit, found.actual) == ("weight", 65504.0, 120000.0)


def test_a_nan_that_no_loss_scale_causes_is_not_called_a_scale_problem(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(6):
            y = model(torch.randn(3, 4))
            loss = torch.sqrt((y * (0 if step >= 2 else 1)).pow(2).sum(-1)).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    run = open_run(tmp_path / "run")
    assert [s.skipped for _, s in run.step_records()] == [False, False, True, True, True, True]
    first = diagnose(run).findings[0]
    assert (first.step, first.cause, first.site) == (2, "sqrt-gradient-at-zero", "loss")


def adam_without_eps(n_steps):
    """Adam with eps = 0 divides 0 by 0 in row 3 from step 1 on, where it gets its first gradients: exact zeros."""
    torch.manual_seed(0)
    table, head = nn.Embedding(4, 2), nn.Linear(2, 1)
    table.weight.requires_grad_(False)
    model = nn.Sequential(table, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.0)
    for step in range(n_steps):
        table.weight.requires_grad_(step >= 1)
        ids = torch.tensor([0, 1, 2] if step < 3 else [0, 1, 3])
        loss = model(ids).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("n_steps", [2, 3])
def test_a_float32_parameter_broken_by_an_update_is_found_at_the_end_at_the_latest(tmp_path, n_steps):
    with hypocenter.watch(out=tmp_path / "run"):
        adam_without_eps(n_steps)

    (found,) = evidence(tmp_path / "run")
    assert (found.trigger, found.bad_params) == ("nonfinite-param", ("0.weight",))
    assert found.optimizer["n_v_zero"] == 2.0


def test_a_broken_float32_parameter_is_found_when_it_is_used(tmp_path):
    with hypocenter.watch(out=tmp_path / "run"):
        adam_without_eps(5)

    found = evidence(tmp_path / "run")
    assert [e.trigger for e in found] == ["nonfinite-param"]
    assert found[0].step in (1, 2)


def test_a_parameter_that_somebody_else_wrote_is_not_blamed_on_the_optimizer(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(9)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(4):
            loss = model(torch.randn(2, 3)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1:
                model[4].weight.data[0, 0] = float("nan")  # no version counter tells of it

    (found,) = evidence(tmp_path / "run")
    assert (found.step, found.trigger, found.leaf_kind) == (2, "nonfinite-loss", "param")
    assert found.leaf.name == "4.weight"
