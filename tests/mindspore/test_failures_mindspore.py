"""Failed steps of whole MindSpore programs: what is recorded and what is said about it."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.amp import DynamicLossScaler, all_finite

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

sys.path.insert(0, str(Path(__file__).parent))
from failing_steps import Linear, Overflowing, normal  # isort: skip


def train(net, out, n_steps, *, scaler=None, spoil=lambda step: None, loss=None):
    """`n_steps` of a plain loop; the findings."""
    optimizer = nn.SGD(net.trainable_params(), 1e-3)
    loss = loss or (lambda x: (net(x) ** 2).mean())

    def forward(x):
        return loss(x) if scaler is None else scaler.scale(loss(x))

    with hypocenter.watch(net, out=str(out)):
        gradient = ms.value_and_grad(forward, None, optimizer.parameters)
        for step in range(n_steps):
            spoil(step)
            _, grads = gradient(normal(4, 2, 8, seed=step))
            if scaler is None:
                optimizer(grads)
                continue
            is_finite = all_finite(grads)
            if is_finite:
                optimizer(scaler.unscale(grads))
            scaler.adjust(is_finite)
    return diagnose(open_run(out)).findings


@pytest.fixture(autouse=True)
def _seeded():
    ms.set_seed(1)


def test_overflow_is_found_located_and_cured(tmp_path):
    net = Overflowing(scale=1.0)

    def spoil(step):
        net.scale = 2000.0 if step == 2 else 1.0

    found = train(net, tmp_path / "run", 4, spoil=spoil)

    first = found[0]
    assert (first.code, first.cause, first.step, first.site) == ("HC102", "format-overflow", 2, "ffn")
    assert first.remedy.verified
    assert first.remedy.targets == ("ffn",)


def test_a_scaler_that_begins_too_high_accuses_nobody(tmp_path):
    net = Linear()
    net.to_float(ms.float16)

    found = train(net, tmp_path / "run", 12, scaler=DynamicLossScaler(2.0**24, 2, 1000))

    assert [f for f in found if f.severity == "error"] == []


def test_under_a_scaler_the_model_is_accused_where_scale_1_does_not_help(tmp_path):
    net = Linear()
    state = {"spoilt": False}

    def spoil(step):
        state["spoilt"] = step >= 3

    def loss(x):
        y = net(x)
        return ops.sqrt((y * 0).sum(-1)).sum() if state["spoilt"] else (y**2).mean()

    found = train(net, tmp_path / "run", 6, scaler=DynamicLossScaler(2.0**10, 2, 1000), spoil=spoil, loss=loss)

    errors = [f for f in found if f.severity == "error"]
    assert [f.cause for f in errors] == ["sqrt-gradient-at-zero"]
    assert errors[0].step == 3


@pytest.mark.queues
def test_training_with_a_replay_in_it_is_bit_identical(tmp_path):
    def run(watched):
        ms.set_seed(1)
        net = Linear()
        optimizer = nn.SGD(net.trainable_params(), 1e-3)
        state = {"step": 0}

        def forward(x):
            y = net(x)
            return (y**2).mean() + (ops.log(y * 0).sum() * 0 if state["step"] == 1 else 0.0)

        def loop():
            gradient = ms.value_and_grad(forward, None, optimizer.parameters)
            for step in range(4):
                state["step"] = step
                _, grads = gradient(normal(4, 2, 8, seed=step) + ops.rand(4, 2, 8))
                optimizer(tuple(ops.nan_to_num(g) for g in grads))

        if watched:
            with hypocenter.watch(net, out=str(tmp_path / "run")):
                loop()
        else:
            loop()
        return {name: p.asnumpy().copy() for name, p in net.parameters_and_names()}

    plain, watched = run(watched=False), run(watched=True)

    assert all(np.array_equal(plain[name], watched[name]) for name in plain)
