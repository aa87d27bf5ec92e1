"""Rules about values and loss scales, on MindSpore programs: each fires on its fault and is silent on the twin."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.amp import DynamicLossScaler, all_finite

import hypocenter

sys.path.insert(0, str(Path(__file__).parent))
from rules_programs import dense, findings, normal  # isort: skip


def train(out, loss, *, net=None, scaler=None, n_steps=6, dtype=ms.float32, given=None, lr=1e-3, **options):
    """`loss(net, x, step)` is what each step differentiates."""
    net = net if net is not None else dense(dtype=dtype)
    optimizer = nn.SGD(net.trainable_params(), lr)
    now = {"step": 0}

    def forward(x):
        value = loss(net, x, now["step"])
        return value if scaler is None else scaler.scale(value)

    def loop():
        gradient = ms.value_and_grad(forward, None, optimizer.parameters)
        for step in range(n_steps):
            now["step"] = step
            _, grads = gradient(given(step) if given else normal(4, 8, seed=step, dtype=dtype))
            if scaler is None:
                optimizer(grads)
                continue
            finite = all_finite(grads)
            if finite:
                optimizer(scaler.unscale(grads))
            scaler.adjust(finite)

    return findings(out, net, loop, **options)


def mean(net, x, step):
    return (net(x).astype(ms.float32) ** 2).mean()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A program without a fault, at level modules, with a probe in it."""

    def loss(net, x, step):
        return hypocenter.probe(net(x) ** 2, "squares").mean()

    return train(tmp_path_factory.mktemp("healthy") / "run", loss, level="modules")


def test_a_healthy_program_is_accused_of_nothing(healthy):
    assert healthy == {}


def test_hc101_a_gradient_is_not_finite(tmp_path):
    def loss(net, x, step):
        return ops.sqrt((net(x) * 0).sum(-1)).sum() if step == 2 else mean(net, x, step)

    assert train(tmp_path / "run", loss)["HC101"].step == 2


def test_hc102_the_loss_is_not_finite(tmp_path):
    def loss(net, x, step):
        return mean(net, x, step) + (ops.log(net(x) * 0).sum() if step == 2 else 0.0)

    assert train(tmp_path / "run", loss)["HC102"].step == 2


def test_hc103_an_update_breaks_a_parameter(tmp_path):
    assert "HC103" in train(tmp_path / "run", mean, lr=1e38, given=lambda step: normal(4, 8, scale=1e3))


class Large(nn.Cell):
    def construct(self, x):
        return ops.exp(x * 1000.0)


class Spare(nn.Cell):
    """A model that computes something infinite and uses it for nothing."""

    def __init__(self):
        super().__init__()
        self.big, self.head = Large(), nn.Dense(8, 4)

    def construct(self, x):
        self.big(x)
        return self.head(x)


def test_hc104_an_activation_is_not_finite(tmp_path):
    assert train(tmp_path / "run", mean, net=Spare(), level="modules")["HC104"].site == "big"


class SquareNorm(nn.Cell):
    """RMS norm that squares in float16."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(8, np.float32)), name="weight")

    def construct(self, x):
        x = x.astype(ms.float16)
        return x * ops.rsqrt((x * x).sum(-1, keepdims=True)) * self.weight.astype(ms.float16)


class Normed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.head = SquareNorm(), nn.Dense(8, 4)

    def construct(self, x):
        return self.head(self.norm(x).astype(ms.float32))


def test_hc105_a_norm_turns_its_input_into_zeros(tmp_path):
    def at(scale):
        return {"net": Normed(), "level": "modules", "given": lambda step: Tensor(np.full((4, 8), scale, np.float16))}

    assert train(tmp_path / "large", mean, **at(300.0))["HC105"].site == "norm"
    assert "HC105" not in train(tmp_path / "small", mean, **at(30.0))


def test_hc106_an_update_is_skipped(tmp_path):
    how = {"dtype": ms.float16, "n_steps": 12}

    assert "HC106" in train(tmp_path / "high", mean, scaler=DynamicLossScaler(2.0**24, 2, 1000), **how)
    assert "HC106" not in train(tmp_path / "low", mean, scaler=DynamicLossScaler(2.0**8, 2, 1000), **how)


def test_hc107_a_probed_value_is_not_finite(tmp_path):
    def loss(net, x, step):
        y = net(x)
        hypocenter.probe(ops.log(y * 0 - (step == 3)), "logs")
        return (y**2).mean()

    assert train(tmp_path / "run", loss)["HC107"].site == "logs"


def test_hc201_the_loss_scale_collapses(tmp_path):
    def loss(net, x, step):
        return mean(net, x, step) if step < 10 else ops.sqrt((net(x) * 0).sum(-1)).sum()

    def run(name, loss):
        scaler = DynamicLossScaler(2.0**24, 2, 1000)
        return train(tmp_path / name, loss, scaler=scaler, n_steps=28, replay=False)

    assert run("run", loss)["HC201"].step == 10
    assert run("twin", mean) == {}


@pytest.mark.night
def test_hc202_one_layer_keeps_overflowing(tmp_path):
    def loss(net, x, step):
        size = 2e4 if step >= 12 and step % 5 != 1 else 1.0
        return (net(x).astype(ms.float32) * size).sum()

    def run(name, loss):
        scaler = DynamicLossScaler(2.0**14, 2, 1000)
        how = {"dtype": ms.float16, "given": lambda step: normal(1, 8, seed=step, dtype=ms.float16)}
        return train(tmp_path / name, loss, scaler=scaler, n_steps=28, lr=1e-6, **how)

    assert "HC202" in run("run", loss)
    assert "HC202" not in run("twin", lambda net, x, step: net(x).astype(ms.float32).sum())


def tiny(net, x, step):
    return (net(x).astype(ms.float32) * 2.0**-22).sum()


def two_layers():
    ms.set_seed(1)
    net = nn.SequentialCell(nn.Dense(8, 16), nn.Dense(16, 16))
    for parameter in net.get_parameters():
        parameter.set_dtype(ms.float16)
    return net


def test_hc203_the_loss_scale_is_too_low(tmp_path):
    how = {"dtype": ms.float16, "level": "modules", "n_steps": 6, "param_schedule": "every=1"}

    assert "HC203" in train(tmp_path / "low", tiny, net=two_layers(), scaler=DynamicLossScaler(1.0, 2, 1000), **how)
    assert "HC203" not in train(
        tmp_path / "high", tiny, net=two_layers(), scaler=DynamicLossScaler(2.0**16, 2, 1000), **how
    )


def test_hc204_an_idle_loss_scale_grows(tmp_path):
    found = train(tmp_path / "idle", lambda net, x, step: net(x).sum() * 0, scaler=DynamicLossScaler(2.0**22, 2, 1),
                  n_steps=24)  # fmt: skip

    assert found["HC204"].cause == "dead-gradient"
    assert "HC204" not in train(tmp_path / "twin", mean, scaler=DynamicLossScaler(2.0**22, 2, 1), n_steps=24)


@pytest.mark.night
def test_hc205_a_value_grows_towards_the_end_of_its_format(tmp_path):
    def growing(by):
        return {"given": lambda step: normal(4, 8, dtype=ms.float16, scale=300.0 * by**step), "n_steps": 90, "lr": 1e-9}

    how = {"dtype": ms.float16, "level": "modules"}

    assert "HC205" in train(tmp_path / "grows", tiny, **growing(1.05), **how)
    assert "HC205" not in train(tmp_path / "stays", tiny, **growing(1.0), **how)


def test_hc203_gradients_underflow_without_a_scale(tmp_path):
    how = {"dtype": ms.float16, "level": "modules", "n_steps": 6, "param_schedule": "every=1"}

    assert "HC203" in train(tmp_path / "low", tiny, net=two_layers(), **how)
    assert "HC203" not in train(tmp_path / "large", mean, net=two_layers(), **how)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [True, False], ids=["jump", "twin"])
def test_hc401_the_loss_jumps(fault, tmp_path):
    def given(step):
        return normal(4, 8, seed=step, scale=300.0 if fault and step == 20 else 1.0)

    found = train(tmp_path / "run", mean, n_steps=24, given=given, lr=1e-9)

    assert found["HC401"].step == 20 if fault else "HC401" not in found
