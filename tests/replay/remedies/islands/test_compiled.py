"""Islands around, inside and under activation checkpointing and torch.compile."""

from dataclasses import dataclass

import pytest
import torch
from island_models import Wrapped, built, equal, ran
from torch import nn

import hypocenter

torch.set_num_threads(1)

compiles = pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 does not compile it in one graph")


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


@compiles
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


@compiles
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


@compiles
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
