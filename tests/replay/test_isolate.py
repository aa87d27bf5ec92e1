"""On a live model: each module gets what the baseline's took in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.errors import ConfigError, NoRecordingError

sys.path.insert(0, str(Path(__file__).parent.parent / "compare" / "isolation"))
from six_layers import build, record


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    torch.set_num_threads(1)
    return record(tmp_path_factory.mktemp("live") / "good", build())


def own(found):
    return [one.site for one in found if one.innermost]


@pytest.mark.parametrize("scale", [1.02, 1.05])
def test_names_the_layer_whose_output_is_scaled(good, scale):
    model = build(halves=True)
    model.blocks[2].proj.scale = scale

    found = hypocenter.isolate(model, good)

    assert own(found) == ["blocks.2.proj"]
    assert found[0].port == "out[0]"
    assert found[0].error == pytest.approx(scale - 1, rel=0.1)


def test_nobody_is_accused_of_another_order_of_sums(good):
    found = hypocenter.isolate(build(halves=True), good)

    assert {one.verdict for one in found} == {"not-own"}
    assert len(found) == 52


def test_float32_against_a_recording_in_float32(tmp_path):
    good = record(tmp_path / "good", build(dtype=torch.float32))
    model = build(halves=True, dtype=torch.float32)

    assert own(hypocenter.isolate(model, good)) == []

    model.blocks[4].down.scale = 1 + 1e-5
    assert own(hypocenter.isolate(model, good)) == ["blocks.4.down"]


def test_names_the_layer_whose_backward_is_wrong(good):
    model = build(halves=True)
    model.blocks[3].down.gradient_scale = 1.1

    found = hypocenter.isolate(model, good)

    assert own(found) == ["blocks.3.down"]
    assert found[0].port in ("weight.grad", "bias.grad")


def test_the_input_gradient_is_judged_where_nothing_else_uses_the_input(tmp_path):
    from six_layers import Turned

    class Act(nn.Module):
        scale = 1.0

        def forward(self, x):
            return Turned.apply(torch.relu(x), self.scale)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Act(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "good"), level="tensors", replay=False):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    model[1].scale = 1.5

    found = hypocenter.isolate(model, tmp_path / "good")

    assert own(found) == ["1"]
    assert found[0].port == "grad_in[0]"


def test_recorded_weights_leave_only_the_code_to_differ(good):
    model = build()
    with torch.no_grad():
        model.blocks[1].up.weight.mul_(1.1)
    before = model.blocks[1].up.weight.detach().clone()

    with_own = hypocenter.isolate(model, good, sites=["blocks.1.up", "blocks.1.down"])
    with_recorded = hypocenter.isolate(model, good, sites=["blocks.1.up", "blocks.1.down"], load_weights=True)

    assert own(with_own) == ["blocks.1.up"]
    assert own(with_recorded) == []
    assert torch.equal(model.blocks[1].up.weight, before)


def test_leaves_no_trace(good):
    model = build()
    torch.manual_seed(5)
    state = torch.get_rng_state()

    hypocenter.isolate(model, good)

    assert torch.equal(torch.get_rng_state(), state)
    assert all(param.grad is None for param in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_says_what_is_missing(good, tmp_path):
    without = record(tmp_path / "modules", build(), level="modules")

    with pytest.raises(NoRecordingError, match="no values"):
        hypocenter.isolate(build(), without)
    with pytest.raises(NoRecordingError, match="step 7"):
        hypocenter.isolate(build(), good, step=7)
    with pytest.raises(ConfigError, match="no module"):
        hypocenter.isolate(nn.Linear(3, 3), good, sites=["nobody"])


def test_a_call_of_the_users_own(good):
    model = build(halves=True)
    ids = torch.zeros(2, 16, dtype=torch.long)

    found = hypocenter.isolate(model, good, call=lambda: model(ids))

    assert own(found) == []
    assert len(found) == 52
