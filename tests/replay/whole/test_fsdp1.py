"""Real FSDP1 wrappers on the first of two ranks: what its flat parameters hold, and what its forward does to inputs."""

import contextlib

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

from hypocenter.replay.whole import fsdp1
from hypocenter.replay.whole import model as sharding
from hypocenter.replay.whole.model import Whole

pytestmark = [
    pytest.mark.usefixtures("two_ranks"),
    pytest.mark.filterwarnings("ignore"),  # FSDP1 warns that it is on a CPU, and of its own use of torch
]


class Net(nn.Module):
    """A tied weight, a frozen one, one of an odd number of elements."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 3)
        self.last = nn.Linear(3, 5, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def both(keep_names, **more):
    """(a whole model, the same one under FSDP1, what the other rank sends)"""
    torch.manual_seed(0)
    plain, inner = Net(), Net()
    inner.load_state_dict(plain.state_dict())
    net = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=keep_names, **more)
    with contextlib.suppress(RuntimeError):
        net(torch.zeros(1, 3))  # FSDP1 sets itself up in its first forward; here nobody answers
    net._handle.reshard(free_unsharded_flat_param=True)
    facts = net._handle.flat_param
    values = iter(p.detach().flatten() for p in plain.parameters())
    layout = zip(facts._numels_with_padding, facts._is_padding_mask, strict=True)
    flat = torch.cat([torch.full((numel,), 7.0) if is_padding else next(values) for numel, is_padding in layout])
    return plain, net, flat, facts._local_shard.numel()


@pytest.mark.parametrize("keep_names", [True, False])
def test_the_stand_ins_compute_what_the_whole_model_computes(keep_names, other_rank):
    plain, net, flat, n = both(keep_names)
    net._handle.flat_param._local_shard.copy_(flat[:n])
    x = torch.randn(4, 3)
    stand_ins = Whole([net])
    rest = nn.functional.pad(flat[n:], (0, 2 * n - flat.numel()))
    stand_ins.agree(other_rank({0: rest}), 1 << 20)

    plain(x).square().sum().backward()
    with stand_ins.in_place(), stand_ins.on_demand(lambda _: None):
        net(x).square().sum().backward()

    names = {m: name.replace("_fsdp_wrapped_module", "").strip(".") for name, m in net.named_modules()}.get
    named = dict(stand_ins.parameters(list(net.named_parameters()), names))
    assert list(named) == [name for name, _ in plain.named_parameters()]
    assert all(torch.equal(named[name].grad, p.grad) for name, p in plain.named_parameters())
    assert "forward" not in net.__dict__


@pytest.mark.parametrize("keep_names", [True, False])
def test_everything_is_put_back(keep_names):
    _, net, _, _ = both(keep_names)

    def state():
        return [
            (id(m._parameters), sorted(m.__dict__), {k: id(v) for k, v in m.__dict__.items()}) for m in net.modules()
        ]

    before = state()
    with Whole([net]).in_place():
        assert state() != before

    assert state() == before


def test_inputs_and_parameters_are_cast_as_fsdp_casts_them():
    _, net, _, _ = both(True, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    seen = []
    net._fsdp_wrapped_module.first.register_forward_pre_hook(
        lambda module, inputs: seen.append((inputs[0].dtype, module.weight.dtype))
    )
    stand_ins = Whole([net])
    stand_ins.agree(None, 1 << 20)

    with pytest.raises(Exception, match="one rank"), stand_ins.in_place(), stand_ins.on_demand(lambda _: None):
        net(torch.randn(4, 3))

    assert seen == [(torch.bfloat16, torch.bfloat16)]


def test_one_that_was_never_called_is_refused():
    net = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))

    assert fsdp1.is_sharded(net)
    assert "not been called" in sharding.why_not(net)
