"""A backward that is not the derivative of its forward is told from one that is not meant to be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from hypocenter.relations.called import FunctionCall
from hypocenter.relations.derivative import LIMIT, error_of
from hypocenter.testing import RelationBroken, check_relations


def function(forward, backward, name="Own"):
    """A class of autograd functions."""

    def forward_of(ctx, *args):
        ctx.save_for_backward(*(each for each in args if isinstance(each, torch.Tensor)))
        return forward(*args)

    def backward_of(ctx, gradient):
        return backward(gradient, *ctx.saved_tensors)

    methods = {"forward": staticmethod(forward_of), "backward": staticmethod(backward_of)}
    return type(name, (torch.autograd.Function,), methods)


def linear(x, w, b):
    return x @ w.T + b


def error(own, *args):
    return error_of(FunctionCall(function=own, args=args, module=None, source=None))


def slope_of_swish(g, x):
    s = x.sigmoid()
    return g * s * (1 + x * (1 - s))


RIGHT = {
    "swish": (lambda x: x * x.sigmoid(), slope_of_swish),
    "relu": (lambda x: x.clamp(min=0), lambda g, x: g * (x > 0)),
    "a root": (lambda x: (x * x + 1e-6).sqrt(), lambda g, x: g * x / (x * x + 1e-6).sqrt()),
    "a loss that takes no gradient": (lambda x: x.square().mean(), lambda g, x: 2 * x / x.numel()),
    "a near formula": (
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda g, x: g * (0.5 * (1 + torch.erf(x / 2**0.5)) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    ),
}
WRONG = {
    "a term is missing": (lambda x: x * x.sigmoid(), lambda g, x: g * x.sigmoid()),
    "a factor is missing": (lambda x: x.square().mean(), lambda g, x: x / x.numel()),
    "a sign": (lambda x: x.cos(), lambda g, x: g * x.sin()),
}
NOT_MEANT = {
    "rounding": (lambda x: (8 * x).round() / 8, lambda g, x: g),
    "a sign with a straight gradient": (lambda x: x.sign(), lambda g, x: g * (x.abs() < 1)),
    "a spike": (lambda x: (x > 0).to(x.dtype), lambda g, x: g / (1 + x.abs()) ** 2),
    "a limit that gradients pass": (lambda x: x.clamp(-0.5, 0.5), lambda g, x: g),
    "a reversed gradient": (lambda x: x.clone(), lambda g, x: -g),
    "noise": (lambda x: x * torch.rand_like(x), lambda g, x: 3 * g),
    "another format only": (lambda x: x.float() @ torch.ones(16, 2), lambda g, x: g.double() @ torch.ones(2, 16)),
}


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(32, 16, requires_grad=True)


@pytest.mark.parametrize("name", RIGHT)
def test_a_derivative(name, x):
    found = error(function(*RIGHT[name]), x)

    assert found is not None
    assert found[0] < LIMIT / 10


@pytest.mark.parametrize("name", WRONG)
def test_no_derivative(name, x):
    found = error(function(*WRONG[name]), x)

    assert found is not None
    assert found[0] > 5 * LIMIT


@pytest.mark.parametrize("name", NOT_MEANT)
def test_what_is_not_meant_to_be_one(name, x):
    assert error(function(*NOT_MEANT[name]), x) is None


def test_a_quantizer_with_a_learned_scale_is_not_meant_to_be_one(x):
    own = function(lambda x, s: (x / s).round() * s, lambda g, x, s: (g, ((x / s).round() - x / s).mul(g).sum()))

    assert error(own, x, torch.tensor(0.1, requires_grad=True)) is None


def test_a_kernel_that_reads_float64_as_its_own_format_cannot_be_asked(x):
    """As one that is given an address; its backward is wrong by a half, but nobody can tell."""
    as_float32 = function(lambda x: x.contiguous().view(torch.float32)[..., : x.shape[-1]] ** 2, lambda g, x: g * x)

    assert error(as_float32, x) is None
    assert error(function(lambda x: x**2, lambda g, x: g * x), x) is not None


def test_the_argument_is_named(x):
    weight, bias = torch.randn(8, 16, requires_grad=True), torch.randn(8, requires_grad=True)
    own = function(linear, lambda g, x, w, b: (g @ w, g.T @ x, g.mean(0)))

    found = error(own, x, weight, bias)

    assert found is not None
    assert found[1] == "[2]"


class Net(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.first, self.head, self.own = nn.Linear(6, 8), nn.Linear(8, 3), own

    def forward(self, x):
        return self.head(self.own.apply(self.first(x)))


def test_it_is_seen_inside_a_model_with_its_line():
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    check_relations(Net(function(*RIGHT["swish"])), x, loss=functional.cross_entropy, labels=y)

    with pytest.raises(RelationBroken, match="backward of Swish is not the derivative") as caught:
        check_relations(Net(function(*WRONG["a term is missing"], "Swish")), x, loss=functional.cross_entropy, labels=y)

    (found,) = caught.value.looked.losses
    assert found.source is not None
    assert "self.own.apply" in found.source.text


class OwnLoss(nn.Module):
    """A loss of one number, which is weighed by a factor."""

    def __init__(self, own, factor):
        super().__init__()
        self.first, self.own, self.factor = nn.Linear(6, 3), own, factor

    def forward(self, x):
        return self.factor * self.own.apply(self.first(x)), self.own.apply(self.first(x + 1))


@pytest.mark.parametrize(("name", "factor", "is_wrong"), [
    ("leaves it out", 1.0, False), ("leaves it out", 0.2, True), ("leaves it out", 65536.0, True),
    ("uses it", 0.2, False),
])  # fmt: skip
def test_a_loss_that_takes_no_gradient_is_wrong_where_it_is_given_another_than_1(name, factor, is_wrong):
    slope = {"leaves it out": lambda g, x: 2 * x / x.numel(), "uses it": lambda g, x: 2 * g * x / x.numel()}[name]
    model = OwnLoss(function(lambda x: x.square().mean(), slope, "Fused"), factor)

    def ask():
        check_relations(model, torch.randn(8, 6), loss=lambda out, _: out[0] + out[1], labels=torch.zeros(8))

    if not is_wrong:
        ask()
        return
    with pytest.raises(RelationBroken, match=f"does not use the gradient .* it is given {factor:.6g}, and for 1"):
        ask()
