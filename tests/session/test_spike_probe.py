"""A step that jumps is done again at once: which operation, which tensor, which samples; and what stays silent."""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hypocenter
from hypocenter.config import Config
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.reader import open_run
from hypocenter.replay.case import Case
from hypocenter.replay.engine import Replayer
from hypocenter.replay.spike import SpikeReplay
from hypocenter.session.check import Check
from hypocenter.session.observer import LocalNorm
from hypocenter.session.recording import Session
from hypocenter.session.spike_probe import SpikeProbe, halves, outweighs

AT, N = 40, 60  # the step of the fault, all steps
ROWS = 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 10)
        self.temperature, self.factor = 1.0, None

    def forward(self, x):
        h = torch.tanh(self.up(x))
        if self.factor is not None:
            h = h * self.factor
        return self.down(h) / self.temperature


def batch(generator):
    return torch.randn(ROWS, 16, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator)


def train(folder, fault=None, *, n_micro=1, clip=False, scaler=None, watched=True, make=torch.optim.SGD, **options):
    torch.manual_seed(0)
    net = Net()
    optimizer = make(net.parameters(), lr=0.05, **options)
    generator = torch.Generator().manual_seed(1)
    watching = hypocenter.watch(out=folder) if watched else None
    for step in range(N):
        optimizer.zero_grad()
        for micro in range(n_micro):
            x, y = batch(generator)
            net.temperature, net.factor = 1.0, None
            if fault is not None and step == AT and micro == n_micro - 1:
                x, y = fault(net, x, y) or (x, y)
            loss = F.cross_entropy(net(x), y) / n_micro
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
    if watching is not None:
        watching.close()
    return [p.detach().clone() for p in net.parameters()]


def findings(folder):
    return [f for f in diagnose(open_run(folder)).findings if f.code == "HC401"]


def cold(net, x, y):
    net.temperature = 0.005


def another_factor(net, x, y):
    net.factor = 500.0


def outlier(net, x, y):
    x[5] *= 0
    x[5, 3] = 4e4
    return x, y


def wrong_target(net, x, y):
    with torch.no_grad():
        x[:] = net.up.weight[0] * 20  # sure of what it says
        y[:] = net(x).argmax(1)
        y[11] = (y[11] + 1) % 10
    return x, y


def poisoned_weight(net, x, y):
    with torch.no_grad():
        net.down.weight *= 300


@pytest.mark.slow
@pytest.mark.parametrize("n_micro", [1, 3])
@pytest.mark.parametrize("clip", [False, True])
def test_an_operation_is_named_with_its_line(n_micro, clip, tmp_path):
    train(tmp_path / "run", cold, n_micro=n_micro, clip=clip)

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.severity) == (AT, "exploding-gain", "warning")
    assert finding.microbatch == n_micro - 1
    assert finding.op == "aten.div.Tensor"
    assert finding.source is not None
    assert "self.temperature" in finding.source.text
    assert finding.confidence == "proven"
    assert any("0.005" in line for line in finding.why)


@pytest.mark.night
def test_an_operation_behind_a_jump_as_healthy_runs_make_is_no_proof(tmp_path):
    def cool(net, x, y):
        net.temperature = 0.2

    train(tmp_path / "run", cool)

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.severity) == (AT, "exploding-gain", "note")


def test_an_operation_that_no_step_had_before_is_likely(tmp_path):
    train(tmp_path / "run", another_factor)

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.op, finding.confidence) == (AT, "aten.mul.Tensor", "likely")


def regression(folder, fault):
    """A linear model: what comes in goes through."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(out=folder):
        for step in range(N):
            x, _ = batch(generator)
            if step == AT:
                fault(x)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def test_a_batch_of_another_scale_is_named(tmp_path):
    regression(tmp_path / "run", lambda x: x.mul_(255))

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.phase, finding.severity) == (AT, "data-shifted", "data", "warning")


def test_a_sample_that_carries_it_is_named(tmp_path):
    regression(tmp_path / "run", lambda x: x[7].mul_(1000))

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.samples, finding.severity) == (AT, "bad-sample", (7,), "warning")
    assert finding.remedy is not None
    assert finding.remedy.verified


@pytest.mark.slow
@pytest.mark.parametrize(("error", "severity"), [(3.0, "note"), (300.0, "warning")])
def test_a_hard_sample_of_a_task_that_is_learned_accuses_nobody(error, severity, tmp_path):
    torch.manual_seed(0)
    net, generator = nn.Linear(16, 1), torch.Generator().manual_seed(1)
    true = torch.randn(16, 1, generator=generator)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    with hypocenter.watch(net, out=tmp_path / "run"):
        for step in range(200):
            x = torch.randn(ROWS, 16, generator=generator)
            y = x @ true + 0.1 * torch.randn(ROWS, 1, generator=generator)
            if step == 190:
                y[7] += error
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.samples, finding.severity) == (190, "bad-sample", (7,), severity)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "severity"), [(10, "note"), (60, "warning")])
def test_what_few_steps_were_known_of_is_no_warning(step, severity, tmp_path):
    torch.manual_seed(0)
    net, generator = nn.Linear(16, 1), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    with hypocenter.watch(net, out=tmp_path / "run"):
        for number in range(step + 2):
            x, y = torch.randn(ROWS, 16, generator=generator), torch.randn(ROWS, 1, generator=generator)
            if number == step:
                y[7] = 20.0  # about ten times the usual loss
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.samples, finding.severity) == (step, "bad-sample", (7,), severity)


def test_a_sample_is_named_where_the_loss_lays_the_batch_flat(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(model, out=tmp_path / "run"):
        for step in range(N):
            x, y = torch.randn(8, 5, 16, generator=generator), torch.randn(8, 5, 4, generator=generator)
            x[6] *= 1000 if step == AT else 1
            optimizer.zero_grad()
            errors = F.mse_loss(model(x).view(-1, 4), y.view(-1, 4), reduction="none")
            errors.view(8, -1).mean(1).mean().backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.samples) == (AT, "bad-sample", (6,))


@pytest.mark.night
def test_a_sample_is_named_where_labels_number_the_rows(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(16, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(model, out=tmp_path / "run"):
        for step in range(N):
            x = torch.randn(ROWS, 16, generator=generator)
            x[9] *= 300 if step == AT else 1
            optimizer.zero_grad()
            out = model(x)
            F.cross_entropy(out @ out.detach().roll(1, 0).T, torch.arange(ROWS)).backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.samples) == (AT, (9,))


class Costs:
    """What each look into a jump does again, in plain steps."""

    def __init__(self, monkeypatch):
        self.now, self.looks = 0.0, []
        run, each_alone, investigate = Replayer.run, Replayer.each_alone, SpikeReplay.investigate

        def counted(replayer, *args, rows=None, **how):
            self.now += 1.0 if rows is None else len(rows[1]) / rows[0]
            return run(replayer, *args, rows=rows, **how)

        def counted_too(replayer, *args):
            self.now += 1.0
            return each_alone(replayer, *args)

        def looks(replay, spike):
            self.now = 0.0
            try:
                return investigate(replay, spike)
            finally:
                self.looks.append(self.now)

        monkeypatch.setattr(Replayer, "run", counted)
        monkeypatch.setattr(Replayer, "each_alone", counted_too)
        monkeypatch.setattr(SpikeReplay, "investigate", looks)


def test_a_sample_that_is_seen_costs_two_steps(tmp_path, monkeypatch):
    """A traced one, one without the row, and the row alone."""
    costs = Costs(monkeypatch)
    regression(tmp_path / "run", lambda x: x[7].mul_(1000))

    assert costs.looks == [2.0]


class Normalised(Net):
    """What no rows of are known by their place, and what cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return super().forward(self.norm(x))


@pytest.mark.slow
@pytest.mark.parametrize("model", [Net, Normalised])
@pytest.mark.parametrize("fault", ["cold", "another_factor", "poisoned_weight", "wrong_target"])
def test_a_jump_costs_at_most_six_steps(fault, model, tmp_path, monkeypatch):
    costs = Costs(monkeypatch)
    monkeypatch.setitem(globals(), "Net", model)
    train(tmp_path / "run", globals()[fault])

    assert costs.looks
    assert max(costs.looks) <= 6.0


class LooksAtValues(nn.Linear):
    """What torch.func cannot vectorise."""

    def forward(self, x):
        return super().forward(x) if bool(x.isfinite().all()) else x


@pytest.mark.slow
@pytest.mark.parametrize("made", [nn.Linear, LooksAtValues])
def test_a_label_out_of_place_is_found_though_no_tensor_is_large(made, tmp_path):
    torch.manual_seed(0)
    model = made(16, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(model, out=tmp_path / "run"):
        for step in range(N):
            y = torch.randint(0, 10, (ROWS,), generator=generator)
            x = 4 * F.one_hot(y, 16).float() + 0.3 * torch.randn(ROWS, 16, generator=generator)
            if step == AT:
                y[11] = (y[11] + 1) % 10
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.samples) == (AT, "bad-sample", (11,))


def test_parameters_that_grew_are_named(tmp_path):
    train(tmp_path / "run", poisoned_weight)

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.param) == (AT, "state-changed", "down.weight")


@pytest.mark.night
def test_of_two_optimizers_the_learning_rate_of_the_right_one_is_told(tmp_path):
    torch.manual_seed(0)
    nets = [Net(), Net()]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(*nets, out=tmp_path / "run"):
        for step in range(N):
            for net, optimizer in zip(nets, optimizers, strict=True):
                x, y = batch(generator)
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                if net is nets[0]:
                    optimizer.param_groups[0]["lr"] = 2000.0 if step == AT else 0.05
                optimizer.step()

    (finding, *_) = [f for f in findings(tmp_path / "run") if f.step == AT + 1]
    assert any(
        f"the learning rate rose from 0.05 to 2000 at step {AT}" in line for line in (finding.title, *finding.why)
    )


@pytest.mark.night
def test_under_a_loss_scaler_that_grows_the_scale_is_not_taken_for_a_gain(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=7)
    train(tmp_path / "healthy", scaler=scaler)
    train(tmp_path / "run", cold, scaler=torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=7))

    assert findings(tmp_path / "healthy") == []
    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.op) == (AT, "aten.div.Tensor")


@pytest.mark.night
def test_what_the_update_does_with_it_is_told(tmp_path):
    train(tmp_path / "adam", cold, make=torch.optim.AdamW, betas=(0.9, 0.99))
    train(tmp_path / "clipped", cold, clip=True)

    (finding,) = findings(tmp_path / "adam")
    told = " | ".join(finding.then)
    assert "the update used a gradient" in told
    assert "mean of gradients for" in told
    assert "half their size or less for" in told
    assert "clipped" not in told
    (finding,) = findings(tmp_path / "clipped")
    assert any(line.startswith("the gradient was clipped from") for line in finding.then)
    assert "to 1 before the update" in " ".join(finding.then)


@pytest.mark.parametrize("times", [3.0, 30.0, 1e4])
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
def test_how_long_a_jump_is_remembered_is_what_means_do(times, decay):
    ones = [1.0] * 40_000
    mean, of_squares = (1.0 - decay) * times, (1.0 - decay) * times**2
    n_first = next(n for n, _ in enumerate(ones) if not (decay and mean * decay**n > 1.0))
    n_second = next(n for n, _ in enumerate(ones) if not (decay and (1.0 + of_squares * decay**n) ** 0.5 > 2.0))

    assert abs(outweighs(times, decay) - n_first) <= 1
    assert abs(halves(times, decay) - n_second) <= 1


def test_the_norm_of_this_rank_alone_is_looked_at_too(tmp_path, monkeypatch):
    net = Net()
    session = Session(Config(), tmp_path / "run", owns_run=True)
    session.names.add_root(net)
    optimizer = torch.optim.SGD(net.parameters())
    session.attach()
    F.cross_entropy(net(torch.randn(ROWS, 16)), torch.zeros(ROWS, dtype=torch.long)).backward()
    session.switch_off("enough seen")
    del optimizer
    seen = []
    monkeypatch.setattr(SpikeReplay, "investigate", lambda replay, spike: seen.append((spike.of, spike.jump.value)))
    probe = SpikeProbe(Config(), session.names, Replayer(session.tape, contextlib.nullcontext))
    own = LocalNorm()
    for step in range(40):
        own.add([3.0 * (100.0 if step == 30 else 1.0), 4.0])
        check = Check(losses=[1.0], grad_norms={"up.weight": 1.0}, local_norm=own.take(1.0))
        case = Case(
            id="x", trigger="spike", step=step, rank=0, world_size=2, microbatches=tuple(session.tape.microbatches),
            bad_params=(), n_params=1, loss=1.0, loss_scale=None, healthy_steps=step,
        )  # fmt: skip
        probe.look(check, case, lambda case: Evidence(id=case.id, trigger="spike", step=case.step))

    assert seen == [("the gradient of this rank", pytest.approx(math.hypot(300.0, 4.0)))]
    assert own.take(1.0) is None


@pytest.mark.slow
@pytest.mark.parametrize(("is_whole", "severity"), [(True, "warning"), (False, "note")])
def test_a_mode_that_was_switched_is_named(is_whole, severity, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8, momentum=0.0), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].weight.mul_(100)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(net, out=tmp_path / "run"):
        for step in range(N):
            net.train(step != AT or not is_whole)
            net[1].train(step != AT)
            optimizer.zero_grad()
            (net(batch(generator)[0]) - 1).square().mean().backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.cause, finding.severity) == (AT, "mode-switched", severity)
    assert "evaluation mode" in finding.title


@pytest.mark.night
def test_the_turn_of_a_loop_in_which_it_began_is_told(tmp_path):
    torch.manual_seed(0)
    net = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(net, out=tmp_path / "run"):
        for step in range(N):
            h = x = net(batch(generator)[0])
            for turn in range(10):
                h = h * (40.0 if step == AT and turn > 5 else 0.5) + x
            optimizer.zero_grad()
            h.square().mean().backward()
            optimizer.step()

    finding = findings(tmp_path / "run")[0]  # the update ruins the model
    assert (finding.step, finding.op) == (AT, "aten.mul.Tensor")
    assert any("this 10 times" in line and "in turn 6," in line for line in finding.why)


@pytest.mark.night
def test_a_gradient_that_jumps_alone_is_looked_into(tmp_path):
    """Of a parameter that is so small a part of the whole that neither loss nor norm show it."""

    torch.manual_seed(0)
    net = Net()
    net.small = nn.Linear(16, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(net, out=tmp_path / "run"):
        for step in range(N):
            x, y = batch(generator)
            hidden = net.down(torch.tanh(net.up(x)))
            side = torch.tanh(net.small(x)) * (1e-2 if step == AT else 1e-6)
            optimizer.zero_grad()
            F.cross_entropy(hidden + side, y).backward()
            optimizer.step()

    (finding,) = findings(tmp_path / "run")
    assert (finding.step, finding.op) == (AT, "aten.mul.Tensor")
    assert any("the norm of the gradient of small." in line for line in finding.why)


def hard(net, x, y):
    """Every label is the least likely one: nothing is wrong but the batch is hard."""
    with torch.no_grad():
        return x, net(x).argmin(-1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [hard, None])
def test_a_hard_batch_accuses_nobody(fault, tmp_path):
    train(tmp_path / "run", fault)

    assert [f for f in findings(tmp_path / "run") if f.severity != "note"] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, cold, wrong_target, poisoned_weight])
def test_training_is_the_same_to_the_bit(fault, tmp_path):
    plain, watched = train(None, fault, watched=False), train(tmp_path / "run", fault)

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
