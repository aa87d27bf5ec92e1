"""Whole runs under a real GradScaler: what is said of a loss scale that falls, and nothing of one that works."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.reader import open_run


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    """Three linear layers; the gradient on its way back through the middle one can be made large."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.gain = 1.0

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.middle(h) / self.gain * self.gain)  # half precision: the gradient between the two is large
        return self.last(h)


def train(n_steps, *, before=None, loss_of=None, clip=False, order=lambda m: m.parameters(), **scaler_options):
    """A run under autocast float16; returns the model and the scales.

    Args:
        before: told (model, step) before each step.
        loss_of: (loss, step) -> loss, before scaling.
        order: parameters as the optimizer gets them.
    """
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(order(model), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", **{"init_scale": 2.0**14, **scaler_options})
    scales = []
    for step in range(n_steps):
        if before is not None:
            before(model, step)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(torch.randn(12, 6)).float(), torch.arange(12) % 3)
        scaler.scale(loss if loss_of is None else loss_of(loss, step)).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model, scales


def result(out):
    """(alarms, notes) of a run."""
    found = diagnose(open_run(out)).findings
    return [f for f in found if f.severity != "note"], [f for f in found if f.severity == "note"]


def evidence(out):
    return [msgspec.json.decode(path.read_bytes(), type=Evidence) for _, path in open_run(out).evidence_files()]


def nan_from(step):
    """Multiplies the loss by a square root at zero: its gradient is NaN at every scale, the loss is not."""

    def loss_of(loss, now):
        return loss + torch.sqrt((loss * 0.0) ** 2) if now >= step else loss

    return loss_of


def outgrowing(first, every=3, factor=4.0):
    """Makes the gradient inside `middle` outgrow the scale at every third step from the first one on."""

    def before(model, step):
        n = (step - first) // every + 1
        model.gain = 2.0**9 * factor**n if step >= first and (step - first) % every == 0 else 1.0

    return before


@pytest.mark.slow
@pytest.mark.parametrize("clip", [False, True])
def test_a_nan_at_every_scale_is_one_finding_about_the_op_with_the_collapse_under_it(tmp_path, clip):
    with hypocenter.watch(out=tmp_path / "run"):
        _, scales = train(40, loss_of=nan_from(10), clip=clip)

    assert scales[-1] < 1e-4
    (finding,), notes = result(tmp_path / "run")
    assert (finding.code, finding.step, finding.cause) == ("HC101", 10, "sqrt-gradient-at-zero")
    assert any(line.startswith("loss scale 16,384 -> 1.5e-05, 30 skips (steps 10 to 39)") for line in finding.then)
    assert any("the scale is not the cause" in line for line in finding.why)
    assert notes == []


def test_it_is_investigated_once_while_it_goes_on(tmp_path):
    with hypocenter.watch(out=tmp_path / "run"):
        train(40, loss_of=nan_from(10))

    assert [e.step for e in evidence(tmp_path / "run")] == [10]


def test_a_nan_that_begins_within_the_warm_up_is_found_at_its_step(tmp_path):
    with hypocenter.watch(out=tmp_path / "run"):
        _, scales = train(50, loss_of=nan_from(2), init_scale=2.0**24)

    assert scales[2] == 2.0**22
    (finding,), _ = result(tmp_path / "run")
    assert finding.cause == "sqrt-gradient-at-zero"
    assert finding.step in (2, 3)


def test_without_replay_the_collapse_is_said_and_nobody_accused(tmp_path):
    with hypocenter.watch(out=tmp_path / "run", replay=False):
        train(40, loss_of=nan_from(10))

    run = open_run(tmp_path / "run")
    ((finding,), _), status = result(tmp_path / "run"), diagnose(run).status
    assert (finding.code, finding.kind, finding.cause, finding.step) == ("HC201", "loss-scale-collapse", "unknown", 10)
    assert status == "cannot-tell"


@pytest.mark.slow
@pytest.mark.parametrize("init_log2", [24, 32])
def test_warm_up_is_silent_and_called_so(tmp_path, init_log2):
    with hypocenter.watch(out=tmp_path / "run"):
        _, scales = train(40, init_scale=2.0**init_log2)

    alarms, notes = result(tmp_path / "run")
    assert alarms == []
    assert evidence(tmp_path / "run") == []
    n_halved = next(i for i in range(len(scales)) if scales[i] == scales[i + 1])
    assert notes[0].count >= n_halved >= init_log2 - 19
    assert notes[0].why[0].startswith("warm-up")


@pytest.mark.night
def test_warm_up_without_replay_is_silent_too(tmp_path):
    with hypocenter.watch(out=tmp_path / "run", replay=False):
        train(40, init_scale=2.0**32)

    assert result(tmp_path / "run")[0] == []


def test_probing_every_few_steps_is_silent_and_called_so(tmp_path):
    with hypocenter.watch(out=tmp_path / "run"):
        train(120, growth_interval=4, init_scale=2.0**18)

    alarms, notes = result(tmp_path / "run")
    assert alarms == []
    assert evidence(tmp_path / "run") == []
    assert {note.why[0].split(":")[0] for note in notes} <= {"warm-up", "probing", "neither warm-up nor probing"}
    assert any(note.why[0].startswith("probing") and note.count > 5 for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [False, True])
def test_a_layer_that_outgrows_the_scale_is_named_with_op_and_line(tmp_path, clip):
    with hypocenter.watch(out=tmp_path / "run"):
        _, scales = train(28, before=outgrowing(10, factor=2.5), clip=clip)

    assert len(set(scales)) >= 6, scales
    (finding,), _ = result(tmp_path / "run")
    assert (finding.code, finding.severity, finding.cause) == ("HC202", "warning", "loss-scale-overflow")
    assert (finding.confidence, finding.phase) == ("proven", "backward")
    assert "self.gain" in finding.source.text
    assert any("backward first went wrong at middle" in line for line in finding.why)
    assert any("finite at loss scale 1" in line for line in finding.why)


@pytest.mark.night
def test_the_culprit_does_not_depend_on_the_order_in_the_optimizer(tmp_path):
    def split(model):
        return [{"params": [p for p in model.parameters() if (p.dim() > 1) == wide]} for wide in (True, False)]

    with hypocenter.watch(out=tmp_path / "run"):
        train(28, before=outgrowing(10, factor=2.5), order=split)

    (finding,), _ = result(tmp_path / "run")
    assert any("backward first went wrong at middle" in line for line in finding.why)


@pytest.mark.night
def test_two_optimizers_of_one_scaler_have_falls_of_their_own(tmp_path):
    torch.manual_seed(0)
    left, right = Net(), Net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (left, right)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(40):
            for model, optimizer in zip((left, right), optimizers, strict=True):
                with torch.autocast("cpu", torch.float16):
                    loss = model(torch.randn(12, 6)).float().pow(2).mean()
                loss = nan_from(10)(loss, step) if model is left else loss
                optimizer.zero_grad()
                scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

    assert scaler.get_scale() < 1e-4
    alarms, _ = result(tmp_path / "run")
    assert [(f.code, f.step, f.cause) for f in alarms] == [("HC101", 10, "sqrt-gradient-at-zero")]


def underflowing(step, factor):
    return lambda loss, now: loss * factor if now >= step else loss


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_that_float16_loses_are_proven_by_a_replay(tmp_path, scaled):
    options = {"init_scale": 1.0, "growth_interval": 1000} if scaled else {"enabled": False}
    with hypocenter.watch(out=tmp_path / "run"):
        train(14, loss_of=underflowing(9, 2.0**-22), **options)

    (finding,), _ = result(tmp_path / "run")
    assert (finding.code, finding.step, finding.cause, finding.confidence) == ("HC203", 9, "grad-underflow", "proven")


@pytest.mark.parametrize(("dtype", "n_found"), [(torch.float16, 1), (torch.bfloat16, 0)])
def test_autocast_inside_the_models_forward_is_seen(tmp_path, dtype, n_found):
    torch.manual_seed(0)
    model = Net()
    model.forward = torch.autocast("cpu", dtype)(model.forward)  # as accelerate does
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(12):
            loss = nn.functional.cross_entropy(model(torch.randn(12, 6)).float(), torch.arange(12) % 3)
            optimizer.zero_grad()
            (loss * (2.0**-22 if step >= 2 else 1.0)).backward()
            optimizer.step()

    alarms, _ = result(tmp_path / "run")
    assert [(f.code, f.step) for f in alarms] == [("HC203", 2)] * n_found


@pytest.mark.parametrize("scaled", [False, True])
def test_a_recording_of_modules_shows_them_without_a_replay(tmp_path, scaled):
    options = {"init_scale": 1.0, "growth_interval": 1000} if scaled else {"enabled": False}
    with hypocenter.watch(out=tmp_path / "run", level="modules", replay=False):
        train(14, loss_of=underflowing(6, 2.0**-16), **options)

    (finding,), _ = result(tmp_path / "run")
    assert (finding.code, finding.confidence) == ("HC203", "likely")
    assert 6 <= finding.step <= 9


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"init_scale": 2.0**20}, {"enabled": False, "dtype": torch.bfloat16}, {"enabled": False}]
)
def test_small_gradients_that_nothing_loses_are_silent(tmp_path, options):
    dtype = options.pop("dtype", torch.float16)
    factor = 2.0**-8 if dtype == torch.float16 and "init_scale" not in options else 2.0**-22
    torch.manual_seed(0)
    model, scaler = Net(), torch.amp.GradScaler("cpu", **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with hypocenter.watch(out=tmp_path / "run"):
        for step in range(14):
            with torch.autocast("cpu", dtype):
                loss = nn.functional.cross_entropy(model(torch.randn(12, 6)).float(), torch.arange(12) % 3)
            optimizer.zero_grad()
            scaler.scale(loss * (factor if step >= 9 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()

    assert result(tmp_path / "run")[0] == []


def test_training_is_bit_identical_with_a_probe_and_replays_at_scale_1(tmp_path):
    def run():
        torch.manual_seed(0)
        model, _ = train(30, before=outgrowing(10, factor=2.5), loss_of=underflowing(28, 2.0**-30))
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    plain = run()
    with hypocenter.watch(out=tmp_path / "run"):
        watched = run()

    assert all(torch.equal(a, b) for a, b in zip(plain[0], watched[0], strict=True))
    assert torch.equal(plain[1], watched[1])
    assert evidence(tmp_path / "run") != []


def collapse(out, loss_of, *, n_steps=40, start=10, init_log2=14, mutated=False):
    """A run whose scale falls from `start` on; with a batch that is overwritten no step can be replayed."""
    torch.manual_seed(0)
    model = Net()
    model.gains = nn.ParameterList(torch.ones(4) for _ in range(24))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**init_log2)
    shared = torch.zeros(12, 6)
    with hypocenter.watch(out=out):
        for step in range(n_steps):
            x = shared.copy_(torch.randn(12, 6)) if mutated else torch.randn(12, 6)
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(x).float(), torch.arange(12) % 3)
            if mutated:
                shared.zero_()
            scaler.scale(loss_of(model, loss, step) if step >= start else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def test_a_collapse_whose_first_steps_cannot_be_replayed_gets_its_cause_from_a_later_one(tmp_path):
    collapse(tmp_path / "run", lambda model, loss, step: nan_from(0)(loss, step), mutated=True)

    (finding,), notes = result(tmp_path / "run")
    assert (finding.code, finding.step, finding.cause) == ("HC201", 10, "sqrt-gradient-at-zero")
    assert "torch.sqrt" in finding.source.text
    assert any("was traced while it ran" in line for line in finding.why)
    assert notes == []


def test_tracing_ends_when_the_cause_is_found(tmp_path):
    collapse(tmp_path / "run", lambda model, loss, step: nan_from(0)(loss, step), mutated=True)

    assert [e.step for e in evidence(tmp_path / "run")] == [25, 26]


@pytest.mark.slow
@pytest.mark.parametrize("mutated", [False, True])
def test_a_collapse_that_goes_round_the_parameters_gets_a_cause(tmp_path, mutated):
    def too_large(model, loss, step):
        """Another gradient each time, of 2^15 in float16: it fits at scale 1."""
        return loss + ((model.gains[step % 24] * 0).half() * 2.0**15).float().sum()

    collapse(tmp_path / "run", too_large, init_log2=20, mutated=mutated)

    (finding,), _ = result(tmp_path / "run")
    assert (finding.code, finding.step, finding.cause) == ("HC201", 10, "loss-scale-overflow")
    assert "2.0**15" in finding.source.text
    assert any("it is 32768, which fits" in line for line in finding.why)
