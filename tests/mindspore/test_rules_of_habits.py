"""Rules about how MindSpore programs train: each fires on its fault and is silent on the twin."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import pytest
from mindspore import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from rules_programs import findings, normal  # isort: skip


class Net(nn.Cell):
    """Two layers with dropout between them."""

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        ms.set_seed(1)
        self.up, self.drop, self.down = nn.Dense(8, 16), nn.Dropout(p=p), nn.Dense(16, 1)

    def construct(self, x):
        return self.down(self.drop(self.up(x).tanh()))


def trained(out, net, *, before=lambda step: None, n_steps=20, **options):
    """A loop over new data; `before(step)` runs ahead of each step."""
    optimizer = nn.SGD(net.trainable_params(), 1e-2)

    def loop():
        gradient = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, optimizer.parameters)
        for step in range(n_steps):
            before(step)
            _, grads = gradient(normal(16, 8, seed=step))
            optimizer(grads)

    return findings(out, net, loop, **options)


def test_hc237_goes_on_in_evaluation(tmp_path):
    def stays(net, step):
        if step == 10:
            net.set_train(False)
            net(normal(4, 8))

    def comes_back(net, step):
        stays(net, step)
        net.set_train(True)

    net, twin, plain = Net().set_train(), Net().set_train(), Net(p=0.0).set_train()
    found = trained(tmp_path / "stays", net, before=lambda step: stays(net, step))["HC237"]

    assert (found.severity, found.step) == ("warning", 10)
    assert "HC237" not in trained(tmp_path / "back", twin, before=lambda step: comes_back(twin, step))
    assert "HC237" not in trained(tmp_path / "no-dropout", plain, before=lambda step: stays(plain, step))


def test_hc237_never_set_to_training_is_a_note(tmp_path):
    assert trained(tmp_path / "never", Net())["HC237"].severity == "note"


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.5, 0.0])
def test_hc254_constant_weights(tmp_path, value):
    net = Net(p=0.0)
    net.up.weight.set_data(Tensor(value, ms.float32).broadcast_to((16, 8)))
    net.up.bias.set_data(ms.ops.zeros(16, ms.float32))
    net.down.weight.set_data(Tensor(0.25, ms.float32).broadcast_to((1, 16)))
    found = trained(tmp_path / "constant", net)

    assert ("HC254" in found) == bool(value)
    assert "HC254" not in trained(tmp_path / "random", Net(p=0.0))
