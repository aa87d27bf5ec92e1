"""Islands: float32 inside autocast and inside half-precision models, under every wrapper, with nothing else changed."""

import copy
import inspect
import io
import pickle
import warnings
import weakref
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.errors import ConfigError, UnknownNameError

torch.set_num_threads(1)


class Attention(nn.Module):
    """Enough of one: two projections, statistics in a buffer, a keyword, a mask, a scalar beside the result."""

    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.proj = nn.Linear(width, width)

    def forward(self, x, *, mask=None, more=None):
        h = self.norm(self.qkv(x))
        if mask is not None:
            h = h.masked_fill(mask, 0)
        if more is not None:
            h = h * more["gain"][0]
        return self.proj(h), h.sum()


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList([Attention(width), Attention(width)])
        self.last = nn.Linear(width, width)

    def forward(self, x):
        h = self.first(x)
        mask = torch.zeros(h.shape, dtype=torch.bool)
        for block in self.blocks:
            out, total = block(h, mask=mask, more={"gain": [h]})
            h = h + out
        return self.last(h), total


class Wrapped(nn.Module):
    """Runs one module under activation checkpointing."""

    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, *args):
        return checkpoint(self.inner, *args, use_reentrant=self.reentrant)


def built(dtype=None, seed=0):
    torch.manual_seed(seed)
    model = Model()
    return model if dtype is None else model.to(dtype)


def ran(model, x, autocast=torch.float16):
    """Output, scalar, gradients, buffers."""
    with torch.autocast("cpu", autocast or torch.float16, enabled=autocast is not None):
        out, total = model(x)
    (out.float().sum() + total).backward()
    grads = {name.replace("_orig_mod.", ""): p.grad for name, p in model.named_parameters()}
    return out.detach(), total.detach(), grads, {n.replace("_orig_mod.", ""): b for n, b in model.named_buffers()}


def equal(a, b):
    return all(
        torch.equal(x[k], y[k]) if isinstance(x, dict) else torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
        for k in (x if isinstance(x, dict) else [0])
    )


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


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_checkpointing_changes_nothing(reentrant, where, dtype):
    def made(checkpointed):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        if checkpointed and where == "inside":
            inner[0] = Wrapped(inner[0], reentrant)
        middle = Wrapped(inner, reentrant) if checkpointed and where == "around" else inner
        model = nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 8))
        model = model if dtype is None else model.to(dtype)
        return model, hypocenter.island(model, ["1.inner" if middle is not inner else "1"])

    x = torch.randn(4, 8).to(dtype or torch.float32)
    found = []
    for checkpointed in (False, True):
        model, _ = made(checkpointed)
        with torch.autocast("cpu", torch.float16, enabled=dtype is None):
            out = model(x)
        out.float().square().sum().backward()
        found.append((out, [p.grad for p in model.parameters()]))

    (out, grads), (out2, grads2) = found
    assert torch.equal(out, out2)
    assert all(torch.equal(a, b) for a, b in zip(grads, grads2, strict=True))


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("where", ["around", "inside"])
def test_compiled_in_one_graph_it_does_the_same(dtype, where):
    torch._dynamo.reset()
    x = torch.randn(4, 8).to(dtype or torch.float32)
    eager, compiled = built(dtype), built(dtype)
    for model in (eager, compiled):
        hypocenter.island(model, ["blocks.1"])
    if where == "around":
        runner = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    else:
        compiled.blocks[1].qkv.compile(backend="aot_eager", fullgraph=True)
        runner = compiled

    autocast = None if dtype else torch.bfloat16
    assert equal(ran(eager, x, autocast), ran(runner, x, autocast))
    assert torch._functorch.config.backward_pass_autocast == "same_as_forward"


def test_islands_come_and_go_after_a_model_was_compiled():
    torch._dynamo.reset()
    model = built()
    x = torch.randn(4, 8)
    compiled = torch.compile(model.eval(), backend="aot_eager", fullgraph=True)

    def run():
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            return compiled(x)[0].clone()

    before = run()
    with hypocenter.island(compiled, ["blocks.0", "blocks.1"]):
        during = run()
        with torch.compiler.set_stance("force_eager"):
            eager = run()
    after = run()

    assert torch.equal(before, after)
    assert torch.equal(during, eager)
    assert not torch.equal(before, during)


@pytest.mark.parametrize("name", ["blocks.1", "_orig_mod.blocks.1", "module.blocks.1", "blocks.[1]", "*ocks.1"])
def test_names_may_be_the_users_or_the_wrappers_or_globs(name):
    torch._dynamo.reset()
    model = built()

    with hypocenter.island(torch.compile(model, backend="eager"), [name]) as handle:
        assert handle.targets == ("blocks.1",)
        assert "forward" in vars(model.blocks[1])
        assert "forward" not in vars(model.blocks[0])


def test_what_is_inside_another_island_is_not_one_of_its_own():
    model = built()

    handle = hypocenter.island(model, ["blocks.0.*", "blocks.0", "blocks.1.q*", "blocks.1.proj:matmul"])

    assert handle.targets == ("blocks.0", "blocks.1.qkv", "blocks.1.proj:matmul")


def test_an_op_counts_for_all_below_so_that_a_glob_takes_the_outermost():
    model = built()

    handle = hypocenter.island(model, ["blocks.*:sum", "blocks.0.qkv:linear", "blocks.0.qkv:sum"])

    assert set(handle.targets) == {"blocks.0:sum", "blocks.1:sum", "blocks.0.qkv:linear"}


def test_a_shared_module_is_one_island_under_all_its_names():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})

    handle = hypocenter.island(model, ["b.0", "a"])

    assert handle.targets == ("b.0",)
    assert vars(shared)["forward"].inner is None


def test_a_module_shared_with_the_outside_stays_narrow_there():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}).half()
    hypocenter.island(model, ["b"])

    out = shared(torch.ones(1, 4).half())

    assert out.dtype == torch.float16
    assert torch.equal(out, nn.functional.linear(torch.ones(1, 4).half(), shared.weight, shared.bias))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("blocks.1.atn", "blocks.1"), ("block.1", "blocks.1"), ("first:matmull", "matmul"), ("last:add_", "add")],
)
def test_an_unknown_name_is_an_error_that_tells_the_nearest(name, hint):
    with pytest.raises(UnknownNameError) as error:
        hypocenter.island(built(), [name])

    assert f"did you mean {hint!r}?" in str(error.value) or hint in error.value.fix


def test_a_format_that_no_island_has_is_an_error():
    with pytest.raises(ConfigError, match="float16"):
        hypocenter.island(built(), ["first"], dtype=torch.float16)


def test_islands_are_taken_off_in_any_order():
    model = built()
    x = torch.randn(4, 8)
    one, two = hypocenter.island(model, ["blocks.0"]), hypocenter.island(model, ["blocks.0.qkv", "blocks.0:sum"])

    one.remove()
    assert "forward" in vars(model.blocks[0].qkv)
    two.remove()
    one.remove()

    assert all("forward" not in vars(m) for m in model.modules())
    assert "removed" in repr(one)
    model(x)


def test_another_tools_forward_is_kept_below_and_above():
    linear = nn.Linear(2, 2)
    calls = []
    original = linear.forward
    linear.forward = lambda x: calls.append("below") or original(x)
    below = linear.forward
    handle = hypocenter.island(linear, [""])
    layer = linear.forward
    linear.forward = lambda x: calls.append("above") or layer(x)

    linear(torch.ones(1, 2))
    handle.remove()
    linear(torch.ones(1, 2))

    assert calls == ["above", "below"] * 2
    assert layer.inner is below


def test_copies_and_pickles_have_islands_of_their_own():
    model = built(torch.float16).eval()
    hypocenter.island(model, ["blocks.0", "blocks.1:sum"])
    x = torch.randn(4, 8).half()
    out = model(x)[0]

    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert vars(twin.blocks[0])["forward"].module is twin.blocks[0]
        assert torch.equal(twin(x)[0], out)
        with torch.no_grad():
            twin.blocks[0].qkv.weight.zero_()
        assert not torch.equal(twin(x)[0], out)
    assert torch.equal(model(x)[0], out)


def test_the_model_can_be_freed():
    model = built()
    handle = hypocenter.island(model, ["blocks.0"])
    gone = weakref.ref(model)

    del model, handle
    import gc

    gc.collect()
    assert gone() is None


def test_the_signature_is_the_users():
    model = built()
    hypocenter.island(model, ["blocks.0", "first:sum"])

    assert list(inspect.signature(model.blocks[0].forward).parameters) == ["x", "mask", "more"]
    assert list(inspect.signature(model.first.forward).parameters) == ["input"]


def test_everything_is_put_back_after_an_error():
    model = nn.Linear(4, 1).half()
    weight = model.weight
    hypocenter.island(model, [""])

    with pytest.raises(RuntimeError, match="shape"):
        model(torch.ones(2, 5).half())

    assert model._parameters["weight"] is weight


def test_without_gradients_and_in_inference_mode():
    model = built(torch.float16)
    hypocenter.island(model, ["blocks.*"])
    x = torch.randn(4, 8).half()

    with torch.inference_mode():
        model(x)
    with torch.no_grad():
        model(x)
    model(x)[0].sum().backward()

    assert int(model.blocks[0].norm.num_batches_tracked) == 3
    assert model.blocks[0].qkv.weight.grad is not None


def test_a_buffer_that_forward_replaces_keeps_its_format():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
            return x - self.mean

    model = Average().half()
    hypocenter.island(model, [""])
    model(torch.ones(3, 2).half())

    assert torch.equal(model.mean, torch.full((2,), 0.5).half())


class Ops(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(4, 4)

    def forward(self, a, b):
        return a @ b, a.sum(dim=-1), torch.einsum("ij,jk->ik", a, b), torch.softmax(self.scale(a), -1)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_op_island_takes_the_named_functions_only(checkpointed):
    model = Ops().half()
    a = torch.full((4, 4), 300.0).half().requires_grad_()

    with hypocenter.island(model, [":matmul", ":sum"], cast_back=False):
        runner = Wrapped(model, False) if checkpointed else model
        product, total, einsum, soft = runner(a, a)
        product.sum().backward()  # before the island goes: a checkpoint calls the forward again

    assert torch.equal(product, torch.full((4, 4), 360000.0))
    assert total.dtype == torch.float32
    assert torch.isinf(einsum).all()
    assert soft.dtype == torch.float16
    assert a.grad.dtype == torch.float16


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_op_island_compiles_in_one_graph(backend):
    torch._dynamo.reset()
    model = Ops()
    a = torch.full((4, 4), 200.0, requires_grad=True)
    hypocenter.island(model, [":matmul"])
    compiled = torch.compile(model, backend=backend, fullgraph=True)

    with torch.autocast("cpu", torch.float16):
        eager, out = model(a, a), compiled(a, a)
    out[0].sum().backward()

    assert torch.equal(out[0], torch.full((4, 4), 160000.0))
    assert torch.isinf(out[2]).all()
    assert all(torch.equal(x, y) for x, y in zip(eager, out, strict=True))


def test_an_op_island_is_over_when_its_module_returns():
    model = nn.Sequential(Ops())
    hypocenter.island(model, ["0:matmul"])
    a = torch.full((4, 4), 200.0)

    with torch.autocast("cpu", torch.float16):
        inside, outside = model[0](a, a)[0], a @ a

    assert torch.isfinite(inside).all()
    assert torch.isinf(outside).all()


def test_bfloat16_instead_of_float16():
    model = Ops().half()
    a = torch.full((4, 4), 300.0).half()

    with hypocenter.island(model, [""], dtype=torch.bfloat16, cast_back=False):
        out = model(a, a)
    linear = nn.Linear(2, 2)
    with hypocenter.island(linear, [""], dtype=torch.bfloat16), torch.autocast("cpu", torch.float16):
        under_autocast = linear(torch.ones(1, 2))

    assert {o.dtype for o in out} == {torch.bfloat16}
    assert torch.isfinite(out[0]).all()
    assert under_autocast.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "normed", [nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_weights_computed_before_the_forward_are_cast_too(normed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), normed(nn.Linear(4, 4))).bfloat16().eval()
    x = torch.randn(2, 4).bfloat16()

    with hypocenter.island(model, ["1"]):
        out = model(x)
    out.sum().backward()

    assert torch.allclose(out.float(), model(x).float(), rtol=2e-2, atol=1e-2)
    assert out.dtype == torch.bfloat16
    assert all(p.grad is not None for p in model.parameters())


def test_a_cache_in_a_plain_attribute_is_written_in_its_format():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = torch.zeros(2, dtype=torch.float16)

        def forward(self, x):
            self.seen += x
            return x + self.seen

    model = Cached()
    hypocenter.island(model, [""])
    model(torch.ones(2).half())

    assert torch.equal(model.seen, torch.ones(2).half())


def test_a_function_that_is_never_called_is_said_once():
    attention = nn.MultiheadAttention(4, 1)
    hypocenter.island(attention, [":softmax"])
    x = torch.ones(2, 1, 4)

    with pytest.warns(UserWarning, match="MultiheadAttention did not call 'softmax' itself"):
        attention(x, x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(x, x, x)
        hypocenter.island(model := Ops(), [":matmul", ":einsum", ":softmax"])
        model(torch.ones(4, 4), torch.ones(4, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nested_arguments_compile_in_one_graph(dtype):
    torch._dynamo.reset()

    @dataclass
    class Box:
        x: torch.Tensor
        n: int

    class Taker(nn.Module):
        def forward(self, pair, box, *, cache=None, more):
            return (pair[0] @ pair[1][0], [box.x * box.n]), {"more": more["a"][0] + 1}

    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.taker = Taker()

        def forward(self, x):
            return self.taker((x, (x, x)), Box(x, 2), cache=None, more={"a": (x,)})

    eager, compiled = Caller(), Caller()
    for model in (eager, compiled):
        hypocenter.island(model, ["taker"])
    x = torch.full((2, 2), 3.0, dtype=dtype)

    (product, boxed), named = torch.compile(compiled, backend="aot_eager", fullgraph=True)(x)
    (product2, boxed2), named2 = eager(x)

    assert product.dtype == boxed[0].dtype == named["more"].dtype == dtype
    assert torch.equal(product, product2)
    assert torch.equal(boxed[0], boxed2[0])
    assert torch.equal(named["more"], named2["more"])
