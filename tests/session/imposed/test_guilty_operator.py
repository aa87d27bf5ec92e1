"""The operator that a backend computes otherwise is found, forward and backward, and none where it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from hypocenter.session.imposed.guilty_operator import guilty_operator


class Flat(torch.autograd.Function):
    """A tanh whose backward is none of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def flat(x: Tensor) -> Any:
    return Flat.apply(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = self.inner(x).float()
        h *= 2.0
        return self.last(h.split(8, dim=-1)[0]).relu()


def instead(target: str, other: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that calls `other` in place of an operator."""

    def backend(module: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        for node in module.graph.nodes:
            if getattr(node.target, "__name__", node.target) == target:
                node.op, node.target = "call_function", other
        module.recompile()
        return module.forward

    return backend


@pytest.fixture(scope="module")
def traced() -> tuple[fx.Graph, list[Any]]:
    """A graph of TorchDynamo, and the inputs of its first call."""
    seen: list[Any] = []

    def keep(module: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            seen[:] = [module.graph, list(inputs)]
            return module.forward(*inputs)

        return call

    torch.manual_seed(0)
    torch.compile(Net(), backend=keep)(torch.randn(4, 8))
    return seen[0], seen[1]


@pytest.mark.parametrize(
    ("target", "other", "operator", "site", "part"),
    [
        ("tanh", torch.sigmoid, "tanh", "inner.1", "forward"),
        ("tanh", flat, "tanh", "inner.1", "backward"),
        ("imul", lambda x, by: x.mul_(by * 0.9), "mul_", "", "forward"),
        ("relu", torch.sigmoid, "relu", "", "forward"),
    ],
)
def test_names_the_operator(
    target: str, other: Callable[..., Any], operator: str, site: str, part: str, traced: tuple[fx.Graph, list[Any]]
) -> None:
    graph, inputs = traced
    before = [one.clone() for one in inputs]

    found = guilty_operator(graph, inputs, instead(target, other))

    assert found is not None
    assert (found.operator, found.site, found.part) == (operator, site, part)
    assert found.error is not None
    assert found.error > found.noise
    assert all(map(torch.equal, before, inputs))
    assert all(one.grad is None for one in inputs)


def test_names_the_line(traced: tuple[fx.Graph, list[Any]]) -> None:
    found = guilty_operator(*traced, instead("imul", lambda x, by: x.mul_(by * 0.9)))

    assert found is not None
    assert found.source is not None
    assert found.source.file == __file__
    assert found.source.text == "h *= 2.0"


def test_a_gradient_that_does_not_go_through_is_one_that_is_wrong(traced: tuple[fx.Graph, list[Any]]) -> None:
    found = guilty_operator(*traced, instead("relu", lambda x: x.detach().relu()))

    assert found is not None
    assert (found.operator, found.part, found.error) == ("relu", "backward", None)


def test_what_is_right_is_not_accused(traced: tuple[fx.Graph, list[Any]]) -> None:
    rounded = instead("tanh", lambda x: (x.double().tanh() * (1 + 1e-15)).to(x.dtype))

    assert guilty_operator(*traced, rounded) is None
