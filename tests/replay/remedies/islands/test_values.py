"""What an island computes: float32 inside, and every kind of argument and result in its format again."""

import copy
import io
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from island_models import built, ran
from torch import nn

import hypocenter

torch.set_num_threads(1)


@settings(max_examples=25, deadline=None)
@given(
    n_in=st.integers(1, 9),
    n_out=st.integers(1, 9),
    log2=st.integers(-12, 14),
    low=st.sampled_from([torch.float16, torch.bfloat16]),
    halved=st.booleans(),
    seed=st.integers(0, 999),
)
def test_an_island_computes_what_a_person_would_write_in_float32(n_in, n_out, log2, low, halved, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(n_in, n_out)
    if halved:
        linear = linear.to(low)
    x = (torch.randn(3, n_in) * 2.0**log2).to(low).requires_grad_()

    with hypocenter.island(linear, [""]), torch.autocast("cpu", low, enabled=not halved):
        out = linear(x)
    out.float().sum().backward()

    x2 = x.detach().clone().requires_grad_()
    weight, bias = (p.detach().clone().requires_grad_() for p in linear.parameters())
    by_hand = nn.functional.linear(x2.float(), weight.float(), bias.float()).to(low)
    by_hand.float().sum().backward()
    assert out.dtype == low
    assert torch.equal(out, by_hand)
    assert torch.equal(x.grad, x2.grad)
    assert torch.equal(linear.weight.grad, weight.grad)
    assert torch.equal(linear.bias.grad, bias.grad)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_parameters_keep_their_format_and_get_their_gradients(dtype):
    model = built(dtype)
    before = {name: (id(p), p.dtype) for name, p in model.named_parameters()}
    keys = list(model.state_dict())

    with hypocenter.island(model, ["blocks.0"]):
        _, _, grads, _ = ran(model, torch.randn(4, 8).to(dtype or torch.float32), None if dtype else torch.float16)
        during = list(model.state_dict())

    assert before == {name: (id(p), p.dtype) for name, p in model.named_parameters()}
    assert keys == during == list(model.state_dict())
    assert all(grad is not None and grad.dtype == (dtype or torch.float32) for grad in grads.values())
    assert all("forward" not in vars(m) for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batch_norm_statistics_go_on(dtype):
    inside, outside = built(dtype), built(dtype)
    x = torch.randn(4, 8).to(dtype)

    with hypocenter.island(inside, ["blocks.0"]):
        inside(x)
    outside(x)

    (a, b) = (m.blocks[0].norm for m in (inside, outside))
    assert a.running_mean.dtype == dtype
    assert torch.allclose(a.running_mean.float(), b.running_mean.float(), rtol=2e-2, atol=2e-3)
    assert a.running_mean.abs().max() > 0
    assert int(a.num_batches_tracked) == int(b.num_batches_tracked) == 1


def test_what_is_outside_runs_as_before():
    model, x = built(), torch.randn(4, 8)
    seen = {}
    model.blocks[0].register_forward_pre_hook(lambda m, args: seen.setdefault("in", args[0]))
    model.last.register_forward_hook(lambda m, args, out: seen.update(args=args[0], out=out))

    with hypocenter.island(model, ["blocks"]), torch.autocast("cpu", torch.float16):
        model(x)
        alone = model.last(seen["args"])
        first = model.first(x)

    assert torch.equal(seen["out"], alone)
    assert alone.dtype == torch.float16
    assert torch.equal(seen["in"], first)


def test_every_kind_of_argument_is_cast_and_cast_back():
    Pair = namedtuple("Pair", "a b")

    @dataclass
    class Box:
        x: torch.Tensor
        n: int

    seen = []

    class Taker(nn.Module):
        def forward(self, one, *rest, **named):
            seen.extend([one, *rest, named])
            return Pair(one * 2, 3), {"list": [rest[0].a], "box": Box(named["box"].x + 1, 1), "none": None}

    x, ids = torch.ones(2).half(), torch.arange(2)
    cache = io.StringIO()
    taker = Taker()
    hypocenter.island(taker, [""])
    pair, rest = taker(x, Pair(x, ids), [x], box=Box(x, 5), cache=cache, ids=ids)

    one, given_pair, (item,), named = seen
    assert one.dtype == given_pair.a.dtype == item.dtype == named["box"].x.dtype == torch.float32
    assert one is given_pair.a is item  # `query is key` decides what attention does
    assert type(given_pair) is Pair
    assert given_pair.b is ids
    assert named["cache"] is cache
    assert named["box"].n == 5
    assert pair.a.dtype == rest["list"][0].dtype == rest["box"].x.dtype == torch.float16
    assert pair.b == 3
    assert rest["none"] is None


def test_a_model_output_of_transformers_stays_one():
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Taker(nn.Module):
        def forward(self, out):
            return outputs.BaseModelOutput(last_hidden_state=out.last_hidden_state * 2, attentions=(out[0],))

    taker = Taker()
    hypocenter.island(taker, [""])
    result = taker(outputs.BaseModelOutput(last_hidden_state=torch.ones(2).half()))

    assert type(result) is outputs.BaseModelOutput
    assert result.last_hidden_state.dtype == result[1][0].dtype == torch.float16


def test_a_loss_is_not_cast_back():
    model = built(torch.float16)

    with hypocenter.island(model, ["blocks.*"]):
        _, total = model(torch.randn(4, 8).half())

    assert total.dtype == torch.float32


def test_a_result_may_stay_float32():
    big = nn.Linear(4, 4, bias=False).half()
    with torch.no_grad():
        big.weight.fill_(200)
    x = torch.full((1, 4), 200.0).half()

    with hypocenter.island(big, [""], cast_back=True):
        narrow = big(x)
    with hypocenter.island(big, [""], cast_back=False):
        wide = big(x)

    assert torch.isinf(narrow).all()
    assert torch.equal(wide, torch.full((1, 4), 160000.0))


def test_an_embedding_gives_what_the_layer_behind_it_needs():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)).half()

    with hypocenter.island(model, ["0"]):
        out = model(torch.tensor([1, 2]))

    assert out.dtype == torch.float16


def test_a_recurrent_net_uses_the_cast_weights():
    net = nn.LSTM(3, 4).bfloat16()
    x = torch.randn(5, 1, 3).bfloat16()
    plain = copy.deepcopy(net).float()(x.float())[0]

    with hypocenter.island(net, [""], cast_back=False):
        out, (h, _) = net(x)
    out.sum().backward()

    assert torch.equal(out, plain)
    assert h.dtype == torch.float32
    assert all(p.grad.dtype == torch.bfloat16 for p in net.parameters())
    assert net(x)[0].dtype == torch.bfloat16
