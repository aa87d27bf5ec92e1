"""Steps that torch's hooks do not show: other scalers, optimizers that update copies, steps that train nothing."""

import contextlib

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.diary import entry_of
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.session import start
from hypocenter.tap.scaled import PlainUpdate


class InHouse:
    """A loss scaler of no known library."""

    def __init__(self):
        self._scale, self._growth_tracker, self._growth_interval = 1024.0, 0, 100

    def scale(self, loss):
        return loss * self._scale

    def get_scale(self):
        return self._scale

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.is_bad = not all(bool(torch.isfinite(grad).all()) for grad in grads)
        if not self.is_bad:
            for grad in grads:
                grad.div_(self._scale)
            optimizer.step()

    def update(self):
        self._scale = self._scale / 2 if self.is_bad else self._scale


class Mastered:
    """An optimizer over float32 copies of half-precision parameters, as DeepSpeed and Megatron-Core have them."""

    def __init__(self, params):
        self.params = list(params)
        self.masters = [nn.Parameter(p.detach().float()) for p in self.params]
        self.optimizer = torch.optim.SGD(self.masters, lr=0.5)
        self.param_groups = self.optimizer.param_groups

    def step(self):
        update = PlainUpdate(optimizer=self, gradients=[(p, p.grad) for p in self.params])
        with start._current[-1].parts.updates.plain_step(update):
            for param, master in zip(self.params, self.masters, strict=True):
                master.grad = param.grad.float()
            self.optimizer.step()
            for param, master in zip(self.params, self.masters, strict=True):
                param.data.copy_(master)
                param.grad = None


@pytest.fixture
def watching(tmp_path):
    """`watch` into a run directory; afterwards its step records, and the recording."""

    @contextlib.contextmanager
    def watch(*args, **options):
        steps = []
        with hypocenter.watch(*args, out=tmp_path / "run", **options):
            yield steps
        recorded = open_run(tmp_path / "run")
        steps += [record for _, record in recorded.step_records()]
        steps.append(recorded)

    return watch


def test_a_scaler_of_the_users_own_has_a_diary(watching):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), InHouse()

    with watching(model, optimizer, scaler) as steps:
        for step in range(5):
            x = torch.randn(3, 4)
            loss = scaler.scale(model(x).pow(2).mean())
            optimizer.zero_grad()
            loss.backward()
            if step == 3:
                model[2].weight.grad[0, 5] = float("inf")
            scaler.step(optimizer)
            scaler.update()

    *steps, recorded = steps
    assert [s.loss_scale for s in steps] == [1024.0] * 4 + [512.0]
    assert [s.skipped for s in steps] == [False] * 3 + [True, False]
    entry = entry_of(list(recorded.readings(steps={3})))
    assert (entry.kind, entry.scale, [r.site for r in entry.culprits]) == ("InHouse", 1024.0, ["2.weight"])
    assert [f for f in diagnose(recorded).findings if f.severity == "error" and f.cause != "unknown"] == []


def test_parameters_have_the_models_names_where_an_optimizer_updates_copies(watching):
    model = nn.Linear(2, 1).bfloat16()
    optimizer = Mastered(model.parameters())

    with watching(model) as steps:
        for step in range(4):
            value = float("nan") if step == 2 else 1.0
            model(torch.full((1, 2), value).bfloat16()).sum().backward()
            optimizer.step()

    *steps, recorded = steps
    assert [s.n_microbatches for s in steps] == [1, 1, 1, 1]
    first = next(f for f in diagnose(recorded).findings if f.severity == "error")
    assert (first.step, first.cause) == (2, "bad-input")


def test_a_refused_step_of_an_optimizer_over_copies_changes_nothing(watching):
    model = nn.Linear(2, 1).bfloat16()
    optimizer = Mastered(model.parameters())

    with watching(model, on_finding="skip", replay=False) as steps:
        model(torch.ones(1, 2).bfloat16()).sum().backward()
        optimizer.step()
        before = model.weight.detach().clone()
        model(torch.full((1, 2), float("inf")).bfloat16()).sum().backward()
        optimizer.step()

    assert torch.equal(model.weight, before)
    assert [s.skipped for s in steps[:-1]] == [False, True]


def test_a_step_on_zero_gradients_before_training_is_no_step(watching):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad, model.bias.grad = torch.zeros_like(model.weight), torch.zeros_like(model.bias)

    with watching(model) as steps:
        optimizer.step()  # as DeepSpeed does to make the optimizer's state
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert [(s.step, s.n_microbatches) for s in steps[:-1]] == [(0, 1), (1, 1)]
