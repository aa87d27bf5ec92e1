import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.record.reader import open_run
from hypocenter.session.observers.calibration import updated


class Block(nn.Module):
    def __init__(self, width, how):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop, self.how = nn.Dropout(0.1), how

    def forward(self, x):
        if self.how == "checkpoint":
            return x + checkpoint(self.inner, x, use_reentrant=True)
        return x + self.inner(x)

    def inner(self, x):
        return self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, how="plain", width=16, n_layers=3):
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.blocks = nn.ModuleList(Block(width, how) for _ in range(n_layers))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens):
        x = self.batch_norm(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(folder, *, how="plain", n_steps=3, n_micro=1, clip=None, dtype=torch.float32, make=adamw, **options):
    torch.manual_seed(0)
    model = Net(how).to(dtype)
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    losses = []
    with hypocenter.watch(out=folder, **options) if folder else contextlib.nullcontext():
        for _ in range(n_steps):
            for _ in range(n_micro):
                tokens = torch.randint(0, 32, (4, 8))
                loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()) / n_micro
                loss.backward()
                losses.append(loss.detach())
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return [*losses, *model.state_dict().values(), torch.get_rng_state()]


MODULES = {"level": "modules", "sketch": True, "param_schedule": "every=1", "calibrate": "0"}


def rows_of(folder):
    """(rows of the run, rows of samples) by where they were observed."""
    run, samples = {}, {}
    for row in open_run(folder).readings():
        key = (row.step, row.microbatch, row.phase, row.site, row.port, row.call)
        if row.op.startswith("calibrate["):
            assert row.replay
            samples.setdefault(key, {})[row.op] = row
        elif not row.replay and not row.recompute:
            run[key] = row
    return run, samples


def distance(a, b):
    a, b = (torch.tensor(row.summary.sketch or (row.summary.sum,), dtype=torch.float64) for row in (a, b))
    return float((a - b).norm() / a.norm()) if a.norm() else float(b.norm())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "checkpoint"])
@pytest.mark.parametrize("options", [{}, {"n_micro": 2, "clip": 0.1}])
def test_training_is_the_same_to_the_bit(tmp_path, how, options):
    plain = train(None, how=how, **options)

    calibrated = train(tmp_path / "run", how=how, **options, **{**MODULES, "calibrate": "every=1"})

    assert all(torch.equal(a, b) for a, b in zip(plain, calibrated, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "smallest", "largest"), [(torch.float32, 2.0**-25, 2.0**-18), (torch.bfloat16, 2.0**-10, 2.0**-3)]
)
def test_every_row_of_the_step_has_three_others_a_few_roundings_away(tmp_path, dtype, smallest, largest):
    train(tmp_path / "run", dtype=dtype, n_micro=2, clip=0.1, **MODULES)

    run, samples = rows_of(tmp_path / "run")

    phases = ("forward", "backward", "loss", "grad")
    wanted = {key for key in run if key[0] == 0 and key[2] in phases}
    assert wanted == {key for key in samples if key[0] == 0}
    assert all(len(found) == 3 for found in samples.values())
    for key in wanted:
        far = max(distance(run[key], row) for row in samples[key].values())
        assert far < largest, key
        if (
            key[2] in ("backward", "grad")
            and key[4] != "value"
            and "embedding" not in key[3]
            and run[key].summary.sumsq > 0
        ):
            assert far > smallest, key


def test_gradients_are_those_that_the_optimizer_gets(tmp_path):
    train(tmp_path / "run", n_micro=3, clip=1e-3, **MODULES)

    run, samples = rows_of(tmp_path / "run")

    norms = {key: row for key, row in run.items() if key[0] == 0 and key[4] == "grad"}
    assert len(norms) == len(list(Net().parameters()))
    for key, row in norms.items():
        for sample in samples[key].values():
            assert sample.summary.sumsq == pytest.approx(row.summary.sumsq, rel=1e-4, abs=1e-20)
    total = run[0, 0, "grad", "grad_norm", "value", 0].summary.sum
    for sample in samples[0, 0, "grad", "grad_norm", "value", 0].values():
        assert sample.summary.sum == pytest.approx(total, rel=1e-4)
        assert sample.summary.sum != total or total == 0


def test_parameters_of_the_next_step_have_a_floor(tmp_path):
    train(tmp_path / "run", **MODULES)

    run, samples = rows_of(tmp_path / "run")

    values = [key for key in samples if key[2] == "param"]
    assert {key[0] for key in values} == {1}
    assert {key[3] for key in values} == {name for name, _ in Net().named_parameters()}
    for key in values:
        assert all(distance(run[key], row) < 1e-3 for row in samples[key].values())
    assert any(distance(run[key], row) > 0 for key in values for row in samples[key].values())


def test_at_level_sentinel_losses_and_gradients_remain(tmp_path):
    train(tmp_path / "run", calibrate="0")

    _, samples = rows_of(tmp_path / "run")

    assert {(key[2], key[4]) for key in samples} == {("loss", "value"), ("grad", "grad"), ("grad", "value")}


def test_only_due_steps_are_calibrated(tmp_path):
    train(tmp_path / "run", n_steps=4, **{**MODULES, "calibrate": "1,3", "param_schedule": "never"})

    _, samples = rows_of(tmp_path / "run")

    assert {key[0] for key in samples} == {1, 3}


def test_a_gradient_that_the_program_has_changed_gets_no_floor(tmp_path, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=tmp_path / "run", **MODULES):
        model(torch.randn(4, 8)).square().mean().backward()
        model[0].weight.grad.add_(torch.randn(32, 8))
        optimizer.step()

    _, samples = rows_of(tmp_path / "run")

    assert {key[3] for key in samples if key[4] == "grad"} == {"0.bias", "2.weight", "2.bias"}
    assert not any(key[3] == "grad_norm" for key in samples)
    assert "gradients of 1 of 4 parameters get no noise floor" in capsys.readouterr().err


def test_a_step_that_cannot_be_replayed_says_why(tmp_path, capsys):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=tmp_path / "run", **MODULES):
        for _ in range(2):
            x = torch.randn(2, 4)
            loss = model(x).mean()
            loss.backward()
            x.zero_()
            optimizer.step()

    assert rows_of(tmp_path / "run")[1] == {}
    said = capsys.readouterr().err
    assert "no noise floor was measured at step 0: an input of shape (2, 4) was changed in place" in said
    assert "switched off" not in said


class Counter(nn.Module):
    """Computes something else each time it is called, which no replay can know."""

    n_calls = 0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.n_calls += 1
        return (x * self.weight).sum() * self.n_calls


def test_a_replay_that_does_not_repeat_the_run_is_no_floor(tmp_path, capsys):
    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=tmp_path / "run", **MODULES):
        model(torch.ones(3)).backward()
        optimizer.step()

    assert rows_of(tmp_path / "run")[1] == {}
    assert "a replay does not repeat the run: its loss is 6, the run's 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "make",
    [
        adamw,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1),
        lambda model: torch.optim.Adafactor(model.parameters(), lr=0.1),
    ],
)
def test_an_update_on_copies_is_the_optimizers_own_and_leaves_it_alone(make):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = make(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    calls = []
    optimizer.register_step_pre_hook(lambda *args: calls.append(1))
    for _ in range(2):
        model(torch.randn(2, 4)).square().sum().backward()
        before = [p.detach().clone() for p in model.parameters()]
        grads = [p.grad.clone() for p in model.parameters()]
        state = str(optimizer.state_dict())

        found = {s.parameter: s for s in updated(optimizer, [(p, p.grad) for p in model.parameters()], {})}

        n_calls = len(calls)
        assert str(optimizer.state_dict()) == state
        assert all(
            torch.equal(p, b) and torch.equal(p.grad, g)
            for p, b, g in zip(model.parameters(), before, grads, strict=True)
        )
        optimizer.step()
        assert all(torch.equal(p, found[p].values) for p in model.parameters())
        assert str([found[p].state for p in model.parameters()]) == str(
            [optimizer.state[p] for p in model.parameters()]
        )
        assert len(calls) == n_calls + 1


def test_an_optimizer_of_somebody_elses_is_not_copied():
    class Own(torch.optim.SGD):
        pass

    model = nn.Linear(2, 1)

    assert (
        list(updated(Own(model.parameters(), lr=0.1), [(p, torch.ones_like(p)) for p in model.parameters()], {})) == []
    )


def test_the_command_line_takes_the_flag_with_and_without_steps():
    from hypocenter.cli.config_options import spelled_out

    assert spelled_out(["--calibrate", "train.py"], 0) == "--calibrate=0"
    assert spelled_out(["--calibrate", "0,5", "train.py"], 0) == "--calibrate"
    assert spelled_out(["--calibrate=3", "train.py"], 0) == "--calibrate=3"
    assert spelled_out(["--calibrate"], 0) == "--calibrate=0"
    assert spelled_out(["--level", "modules"], 0) == "--level"


class Reordered(nn.Linear):
    """The same layer, its sum made of two halves: as tensor parallelism adds it up."""

    def forward(self, x):
        half = self.in_features // 2
        low = functional.linear(x[..., :half], self.weight[:, :half])
        return low + functional.linear(x[..., half:], self.weight[:, half:]) + self.bias


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floors_of_consecutive_steps_hold_for_a_run_that_adds_up_in_another_order(tmp_path, dtype):
    def make(model):
        for module in model.modules():
            if type(module) is nn.Linear and is_other:
                module.__class__ = Reordered
        return adamw(model)

    options = {"n_steps": 4, "dtype": dtype, "clip": 1.0, "make": make}
    is_other = False
    train(tmp_path / "run", **options, **{**MODULES, "calibrate": "every=1"})
    is_other = True
    train(tmp_path / "other", **options, **{**MODULES, "calibrate": "never"})

    run, samples = rows_of(tmp_path / "run")
    other, _ = rows_of(tmp_path / "other")

    ratios = {}
    for key, found in samples.items():
        if run[key].summary.n > 1 and run[key].summary.sumsq > 1e-12 and run[key].dtype not in ("int64", "bool"):
            floor = max(distance(run[key], row) for row in found.values())
            real = distance(run[key], other[key])
            ratios.setdefault((key[0], key[2]), []).append(real / floor if floor else float(real > 0))
    assert {step for step, _ in ratios} == {0, 1, 2, 3}
    for where, found in ratios.items():
        assert sorted(found)[len(found) * 9 // 10] < 4.0, where
    assert max(distance(run[key], other[key]) for key in run if key[0] == 3 and key[2] == "param") > 0


@pytest.mark.night
def test_steps_that_do_not_follow_one_another_start_from_the_run(tmp_path):
    train(tmp_path / "run", n_steps=4, **{**MODULES, "calibrate": "0,3"})

    run, samples = rows_of(tmp_path / "run")

    at = [key for key in samples if key[0] == 3 and key[2] == "forward" and run[key].dtype == "float32"]
    assert at
    assert max(distance(run[key], row) for key in at for row in samples[key].values()) < 2.0**-18


def test_copies_that_are_too_large_are_let_go_of_and_said_so(tmp_path, capsys):
    train(tmp_path / "run", **{**MODULES, "calibrate": "every=1"}, keep_mb=0)

    err = capsys.readouterr().err
    assert "no noise floor was measured" in err or "3 copies of parameters and optimizer state are larger" in err
    assert "switched off" not in err


def test_a_skipped_update_makes_no_parameters(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with hypocenter.watch(out=tmp_path / "run", **{**MODULES, "calibrate": "every=1"}):
        for step in range(4):
            loss = model(torch.full((2, 4), 1e38 if step == 1 else 0.3)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    run, samples = rows_of(tmp_path / "run")

    assert {key[0] for key in samples if key[2] == "grad" and key[4] == "grad"} == {0, 2, 3}
    for key, found in samples.items():
        if key[2] in ("grad", "param") and run[key].summary.n > 1:
            assert all(distance(run[key], row) < 1e-5 for row in found.values()), key
