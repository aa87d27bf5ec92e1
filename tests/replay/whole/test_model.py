"""Modules hold stand-ins for the time of a replay, without the framework's hooks; then all is as it was."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hypocenter.replay.whole import model as sharding
from hypocenter.replay.whole.model import Whole


def shard(parameter, group):
    """Make it one of ZeRO stage 3: empty, with the first half of its elements in `ds_tensor`."""
    flat = parameter.detach().flatten().clone()
    half = (flat.numel() + 1) // 2
    parameter.ds_shape, parameter.ds_numel, parameter.ds_process_group = parameter.shape, flat.numel(), group
    parameter.ds_tensor = flat[:half]
    parameter.ds_tensor.status = SimpleNamespace(name="AVAILABLE")
    parameter.data = torch.empty(0)
    return nn.functional.pad(flat[half:], (0, 2 * half - flat.numel()))


def gathers(module, inputs):
    raise AssertionError("a hook of DeepSpeed's ran in a replay")


gathers.__module__ = "deepspeed.runtime.zero.parameter_offload"


class Net(nn.Module):
    """The first weight is used twice: in the first layer, and as the output layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 4, bias=False)
        self.out = nn.Linear(4, 3, bias=False)
        self.out.weight = self.first.weight

    def forward(self, x):
        return self.out(self.second(torch.tanh(self.first(x))))


@pytest.fixture
def sharded(group):
    """(a whole model, the same one sharded, what the other rank sends)"""
    torch.manual_seed(0)
    whole, net = Net(), Net()
    net.load_state_dict(whole.state_dict())
    sends = {n: shard(p, group) for n, p in enumerate(net.parameters())}
    return whole, net, sends


def state(net):
    """Everything that a replay may touch, by identity."""
    return [
        (
            {name: id(value) for name, value in module.__dict__.items()},
            {key: (id(p), p.numel(), p.ds_tensor._version) for key, p in module._parameters.items() if p is not None},
            list(module._forward_pre_hooks),
        )
        for module in net.modules()
    ]


def test_the_stand_ins_compute_what_the_whole_model_computes(sharded, other_rank):
    plain, net, sends = sharded
    x = torch.randn(5, 4)
    stand_ins = Whole([net])
    stand_ins.agree(other_rank(sends), 1 << 20)

    plain(x).square().sum().backward()
    with stand_ins.in_place(), stand_ins.on_demand(lambda _: None):
        net(x).square().sum().backward()

    named = dict(stand_ins.parameters(list(net.named_parameters()), {m: n for n, m in net.named_modules()}.get))
    assert list(named) == ["first.weight", "first.bias", "second.weight"]
    assert all(torch.equal(named[n].grad, p.grad) for n, p in plain.named_parameters())
    assert all(p.grad is None for p in net.parameters())


def test_everything_is_put_back_even_after_an_error(sharded, other_rank):
    _, net, sends = sharded
    net.first.register_forward_pre_hook(gathers)
    before = state(net)
    stand_ins = Whole([net])
    stand_ins.agree(other_rank(sends), 1 << 20)

    with pytest.raises(RuntimeError, match="shapes"), stand_ins.in_place(), stand_ins.on_demand(lambda _: None):
        net(torch.randn(5, 9))

    assert state(net) == before


def test_the_users_hooks_run_and_deepspeeds_do_not(sharded, other_rank):
    _, net, sends = sharded
    seen = []
    net.first.register_forward_pre_hook(gathers)
    net.first.register_forward_pre_hook(lambda module, inputs: seen.append("call"))
    net.second.weight.register_hook(lambda grad: seen.append("gradient"))
    stand_ins = Whole([net])
    stand_ins.agree(other_rank(sends), 1 << 20)

    with stand_ins.in_place(), stand_ins.on_demand(lambda _: None):
        net(torch.randn(5, 4)).sum().backward()

    assert seen == ["call", "gradient"]


def test_parameters_that_are_not_sharded_keep_their_names(sharded):
    _, net, _ = sharded
    net.extra = nn.Linear(2, 2, bias=False)
    names = {m: n for n, m in net.named_modules()}.get

    found = Whole([net]).parameters(list(net.named_parameters()), names)

    assert [name for name, _ in found] == ["extra.weight", "first.weight", "first.bias", "second.weight"]
    assert found[0][1] is net.extra.weight


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda net: setattr(net.first.weight.ds_tensor, "status", SimpleNamespace(name="NOT_AVAILABLE")), "disk"),
        (lambda net: setattr(net.first.weight.ds_tensor, "ds_quant_scale", torch.ones(1)), "quantized"),
        (lambda net: setattr(net, "zero_quantized_weights", lambda: True), r"ZeRO\+\+"),
        (lambda net: setattr(net, "zenflow", True), "ZenFlow"),
    ],
)
def test_what_cannot_stand_in_is_said(sharded, change, why):
    _, net, _ = sharded
    assert sharding.why_not(net) == ""

    change(net)

    assert re.search(why, sharding.why_not(net))


def test_a_plain_model_has_nothing_to_stand_in_for():
    stand_ins = Whole([nn.Linear(2, 2)])

    assert not stand_ins
    assert stand_ins.limit_bytes == 0


def test_a_parameter_larger_than_a_quarter_of_the_free_memory_is_not_gathered(sharded, monkeypatch):
    _, net, _ = sharded
    monkeypatch.setattr("hypocenter.replay.whole.model.free_bytes", lambda device: 4 * 47)

    stand_ins = Whole([net])

    assert "does not fit" in stand_ins.why_not  # 12 elements of 4 bytes


def test_a_module_that_is_called_by_itself_too_has_the_same_stand_ins(sharded):
    _, net, _ = sharded
    names = {m: n for n, m in net.named_modules()}.get

    found = Whole([net, net.first]).parameters(list(net.named_parameters()), names)

    assert [name for name, _ in found] == ["first.weight", "first.bias", "second.weight"]
