"""What backward computes is a gradient exactly if it is multiplied by what the loss is multiplied by."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hypocenter.config import Config
from hypocenter.session.levels import UntracedReducer
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.ops import OpTap
from hypocenter.tap.tracer import OpTracer

FACTOR = 2.0**10


class RMSNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.transpose(-1, -2) / 3.0, dim=-1) @ x


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), RMSNorm())

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class InPlace(nn.Module):
    def forward(self, x):
        return (x * 2).exp_().sin().abs().pow(2.5)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        double = torch.empty_like(x)
        torch.mul(x, 2.0, out=double)
        return grad * double


class Custom(nn.Module):
    def forward(self, x):
        return Squared.apply(x)


MODELS = {
    "rms norm": RMSNorm, "layer norm": lambda: nn.LayerNorm(8), "gelu": nn.GELU, "gelu tanh": lambda: nn.GELU("tanh"),
    "attention": Attention, "recomputed": Recomputed, "in place": InPlace, "custom": Custom,
    "fused attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
}  # fmt: skip


def rows(clock, model, x, *, factor=1.0, seed=False):
    """(operator, port, |max|) of everything that level `ops` shows of backward."""
    tap = OpTap(OpContext(lambda _: "m"), UntracedReducer(Config()), clock)
    for leaf in (x, *model.parameters()):
        leaf.grad = None
    with tap:
        loss = model(x).square().mean().sqrt()
        gradient = torch.full_like(loss, factor) if seed else None
        loss = loss if seed else loss * factor
        tap.flow.start([gradient])
        loss.backward(gradient)
        tap.flow.end()
    found = [r for r in tap.collect(0) if r.phase == "backward" and not r.port.startswith("terms")]
    return [(r.op, r.port, r.summary.absmax) for r in found]


@pytest.mark.parametrize("seed", [False, True], ids=["loss", "seed"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_a_gradient_exactly_if_the_loss_scale_multiplies_it(name, seed, clock):
    model, x = MODELS[name](), torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    model = model.double()

    once = rows(clock, model, x, factor=1.0, seed=seed)
    more = rows(clock, model, x, factor=FACTOR, seed=seed)

    assert [row[:2] for row in once] == [row[:2] for row in more]
    for (op, port, size), (_, _, scaled) in zip(once, more, strict=True):
        if size:
            assert scaled / size == (FACTOR if port.startswith("grad_in") else 1.0), (op, port)
    assert {port[:3] for _, port, _ in once} >= {"gra"}


def test_the_saved_result_of_rsqrt_is_no_gradient(clock):
    found = rows(clock, RMSNorm(), torch.randn(4, 8, requires_grad=True))

    cubes = [port for op, port, _ in found if op == "aten.pow.Tensor_Scalar"]

    assert "out[0]" in cubes


def test_a_replay_says_the_same_of_its_operators():
    x = torch.randn(4, 8, requires_grad=True)
    tracer = OpTracer(OpContext(lambda _: "m"), lambda _: ("batch", ""))

    with tracer:
        loss = RMSNorm()(x).mean()
        tracer.starts_from([None])
        torch.autograd.grad(loss, [x])

    cube = next(n for n in tracer.nodes if n.place.phase == "backward" and n.traced.op == "aten.pow.Tensor_Scalar")
    last = tracer.nodes[-1]
    assert (cube.is_gradient, last.is_gradient) == (False, True)


def test_a_backward_that_nobody_announced_is_taken_for_gradients(clock):
    tap = OpTap(OpContext(lambda _: "m"), UntracedReducer(Config()), clock)

    with tap:
        x = torch.randn(4, 8, requires_grad=True)
        torch.autograd.grad(RMSNorm()(x).mean(), [x])

    ports = {r.port for r in tap.collect(0) if r.phase == "backward"}
    assert not any(port.startswith("out") for port in ports)
