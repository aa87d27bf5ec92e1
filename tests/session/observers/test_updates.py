"""Lost updates as the session records them, against a count of all elements by hand; nothing for float32 training."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hypocenter
from hypocenter.config import Config
from hypocenter.detect.update_rows import GRAD_SHARE, LR_SHARE, PARAMS_STUCK, SITE, UPDATE_LOST, UPDATE_ULPS, share
from hypocenter.nouns import Place
from hypocenter.record.reader import open_run
from hypocenter.session.check import Check
from hypocenter.session.observer import Context, Update
from hypocenter.session.observers.accumulation import Accumulation
from hypocenter.session.observers.averages import Averages
from hypocenter.session.observers.frozen_state import FrozenState
from hypocenter.session.observers.head import HeadGap
from hypocenter.session.observers.hyperparameters import Hyperparameters
from hypocenter.session.observers.updates import LostUpdates
from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Tape

torch.set_num_threads(1)
LOW = [torch.bfloat16, torch.float16]
WATCHING = [LostUpdates, FrozenState, Averages, Accumulation, Hyperparameters, HeadGap]


def context(model: nn.Module) -> Context:
    names = NameMap()
    names.add_root(model)
    return Context(
        config=Config(), names=names, clock=Clock(), tape=Tape(0), replayer=None, rank=lambda: (0, 1), warn=print,
        label=lambda p: names.param_name(p) or "?", place=Place,
    )  # fmt: skip


def update_of(optimizer: torch.optim.Optimizer, step: int = 0, n_microbatches: int = 1) -> Update:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return Update(
        step=step, optimizer=optimizer, parameters=parameters, check=Check(),
        gradients=[(p, p.grad) for p in parameters if p.grad is not None], microbatches=[None] * n_microbatches,
    )  # fmt: skip


def rows_of(observer: LostUpdates, optimizer: torch.optim.Optimizer, *, skipped: bool = False) -> dict:
    update = update_of(optimizer)
    observer.before_update(update)
    if not skipped:
        optimizer.step()
    update.skipped = skipped
    observer.after_update(update)
    rows, observer.rows = observer.rows, []
    return {(r.site, r.port): r for r in rows}


def weights(values: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(values.to(dtype))
    return model


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    log_rate=st.floats(-5, 0),
    dtype=st.sampled_from(LOW),
    make=st.sampled_from([torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]),
)
def test_counts_are_those_of_all_elements(seed, log_rate, dtype, make):
    random = torch.Generator().manual_seed(seed)
    model = weights(torch.randn(300, generator=random), dtype)
    options = {} if make is torch.optim.SGD else {"eps": 1e-4}  # 1e-8 is 0 in float16
    optimizer = make(model.parameters(), lr=10**log_rate, **options)
    observer = LostUpdates(context(model))
    model.weight.grad = torch.randn(300, generator=random).to(dtype)
    model.weight.grad[:7] = 0
    before = model.weight.detach().clone()

    rows = rows_of(observer, optimizer)

    stayed = model.weight.detach() == before
    lost = rows["weight", UPDATE_LOST]
    assert (lost.summary.n, lost.summary.sum) == (293, int(stayed[7:].sum()))
    assert (lost.module, lost.dtype, lost.shape) == (make.__name__, str(dtype)[6:], (300,))
    if make is torch.optim.SGD:
        intended = 10**log_rate * model.weight.grad.double().abs()
        grid = torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(before.double().abs()))
        expected = float((intended / grid)[7:].median())
        assert rows["weight", UPDATE_ULPS].summary.sum == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"weight_decay": 0.0}])
def test_weights_of_one_and_updates_of_6e_4(options):
    model = weights(torch.ones(8), torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, **options)
    observer = LostUpdates(context(model))
    for _ in range(3):
        model.weight.grad = torch.linspace(-1, -0.5, 8).bfloat16()
        rows = rows_of(observer, optimizer)

    assert torch.equal(model.weight, torch.ones(8, dtype=torch.bfloat16))
    assert share(rows["weight", UPDATE_LOST]) == 1.0
    assert rows["weight", UPDATE_ULPS].summary.sum == pytest.approx(6e-4 * 2**7, rel=0.02)
    assert (rows[SITE, PARAMS_STUCK].summary.n, rows[SITE, PARAMS_STUCK].summary.sum) == (1, 1)


def test_a_skipped_update_says_nothing():
    model = weights(torch.ones(8), torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model.weight.grad = torch.ones(8).bfloat16()

    assert rows_of(LostUpdates(context(model)), optimizer, skipped=True) == {}


def test_a_frozen_or_unused_parameter_says_nothing():
    model = weights(torch.ones(8), torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    observer = LostUpdates(context(model))

    assert rows_of(observer, optimizer) == {}
    model.weight.grad = torch.zeros(8).bfloat16()
    assert rows_of(observer, optimizer)["weight", UPDATE_LOST].summary.n == 0


def test_someone_who_writes_after_the_step_makes_the_formula_worthless():
    """As stochastic rounding or a master weight behind a hook would: only what is seen is reported."""
    model = weights(torch.ones(64), torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer.register_step_post_hook(lambda *_: model.weight.data.add_(0.25))
    model.weight.grad = torch.ones(64).bfloat16()

    lost = rows_of(LostUpdates(context(model)), optimizer)["weight", UPDATE_LOST]

    assert (lost.module, lost.summary.n, lost.summary.sum) == ("", 64, 0)


class Hidden(torch.optim.SGD):
    """Keeps more of the weight than the weight shows."""

    def __init__(self, params, key):
        super().__init__(params, lr=1e-4)
        for p in self.param_groups[0]["params"]:
            self.state[p][key] = torch.zeros_like(p)


@pytest.mark.parametrize(("key", "n_rows"), [("master_param", 0), ("kahan_comp", 0), ("momentum_buffer", 5)])
def test_state_that_holds_a_part_of_the_weight(key, n_rows):
    model = weights(torch.ones(8), torch.bfloat16)
    model.weight.grad = torch.ones(8).bfloat16()

    rows = rows_of(LostUpdates(context(model)), Hidden(model.parameters(), key))

    assert len(rows) == n_rows
    assert all(row.module == "" for row in rows.values())


class Dispatches(TorchDispatchMode):
    """Counts what reaches torch."""

    n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.n += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", WATCHING)
@pytest.mark.parametrize("autocast", [False, True])
def test_float32_training_is_left_alone(make, autocast):
    model = nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 2))
    observer = make(context(model))
    undo = observer.attach()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = Dispatches()

    for step in range(20):
        if step == 18:  # whether an average is one was seen by now
            seen.n *= make is not Averages
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(torch.ones(2, 4)).sum().backward()
        update = update_of(optimizer, step, n_microbatches=9)
        with seen:
            observer.after_backward()
            observer.before_update(update)
        optimizer.step()
        with seen:
            observer.after_update(update)
        with torch.no_grad():
            for theirs, ours in zip(average.parameters(), model.parameters(), strict=True):
                theirs.lerp_(ours, 0.1)
    undo()

    assert seen.n == 0
    assert observer.rows == []
    assert not any(m._forward_hooks for m in model.modules())


def test_every_parameter_has_its_turn(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8))).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(5):
            model(torch.ones(1, 6, dtype=torch.bfloat16)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    rows = [r for r in open_run(tmp_path / "run").readings(phase="optimizer") if r.port == UPDATE_LOST]
    assert {r.site for r in rows} == {name for name, _ in model.named_parameters()} | {SITE}
    assert max(sum(r.step == step for r in rows) for step in range(5)) <= 5


def test_gradient_and_rate_are_told_as_shares_of_the_largest_so_far(tmp_path):
    model = weights(torch.ones(8), torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for size, rate in ((1.0, 1e-3), (4.0, 1e-3), (0.5, 2e-4)):
            optimizer.param_groups[0]["lr"] = rate
            (size * model.weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    rows = list(open_run(tmp_path / "run").readings(phase="optimizer"))
    assert [r.summary.sum for r in rows if r.port == GRAD_SHARE] == [1.0, 1.0, 0.125]
    assert [r.summary.sum for r in rows if r.port == LR_SHARE] == pytest.approx([1.0, 1.0, 0.2])
