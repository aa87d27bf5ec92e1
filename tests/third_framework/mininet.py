"""mininet: a small deep-learning framework on NumPy. It knows nothing of Hypocenter.

An operator is an `Op`. Its `compute` runs one kernel on arrays, and every number of forward and backward comes out of
such a call. Calling the `Op` itself takes tensors, and writes a `Node` from which `Tensor.backward` gets gradients.
Arrays are float16 or float32 (labels: integers); a result has the format of its operands.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

grad_mode = [True]  # whether operators write nodes
_numbers = itertools.count()  # of tensors as they are made


@contextlib.contextmanager
def no_grad() -> Generator[None, None, None]:
    """Compute without writing nodes."""
    before, grad_mode[0] = grad_mode[0], False
    try:
        yield
    finally:
        grad_mode[0] = before


class Tensor:
    """An array with a gradient; `data` is not copied, `node` is of the operator that made it."""

    def __init__(self, data: Any, *, requires_grad: bool = False, node: Node | None = None) -> None:
        self.data: Array = np.asarray(data)
        self.shape, self.dtype = self.data.shape, self.data.dtype
        self.requires_grad, self.node, self.number = requires_grad, node, next(_numbers)
        self.grad: Array | None = None  # of leaves, added up over calls of `backward`

    def item(self) -> float:
        """The only element."""
        return float(self.data.reshape(()))

    def backward(self) -> None:
        """Add the gradient of this tensor (of its sum, if it has several elements) to every leaf's `grad`."""
        gradients: dict[Tensor, Array] = {self: np.ones_like(self.data)}
        while gradients:
            tensor = max(gradients, key=lambda t: t.number)  # made last: its gradient is complete
            gradient = gradients.pop(tensor)
            if tensor.node is None:
                tensor.grad = gradient if tensor.grad is None else add.compute(tensor.grad, gradient)
                continue
            for operand, part in zip(tensor.node.inputs, tensor.node.backward(gradient), strict=True):
                if part is not None:
                    known = gradients.get(operand)
                    gradients[operand] = part if known is None else add.compute(known, part)


class Parameter(Tensor):
    """A tensor that is trained."""

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)


@dataclass(eq=False)
class Node:
    """One operator of a forward pass."""

    op: Op
    inputs: tuple[Tensor, ...]
    options: dict[str, Any]
    output: Array

    def backward(self, gradient: Array) -> list[Array | None]:
        """Gradients of the inputs, from that of the output; None for an input that needs none."""
        parts = self.op.gradient(gradient, self.output, *[t.data for t in self.inputs], **self.options)
        pairs = zip(self.inputs, (*parts, None), strict=False)
        return [_shrunk(part, t.shape) if part is not None and t.requires_grad else None for t, part in pairs]


def _shrunk(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the dimensions along which an operand of this shape was repeated."""
    if gradient.shape == shape:
        return gradient
    extra = gradient.ndim - len(shape)
    axes = tuple(i for i in range(gradient.ndim) if i < extra or shape[i - extra] != gradient.shape[i])
    return reshape.compute(sum_.compute(gradient, axis=axes), shape=shape)


class Op:
    """An operator; its kernel takes arrays and options, and gives an array."""

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self.name, self.kernel = name, kernel
        self.gradient: Callable[..., Sequence[Array | None]] | None = None

    def compute(self, *arrays: Array, **options: Any) -> Array:
        """Run the kernel."""
        with np.errstate(all="ignore"):
            return np.asarray(self.kernel(*arrays, **options))

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        """Run it on tensors; numbers take the format of the first tensor."""
        dtype = next(t.dtype for t in inputs if isinstance(t, Tensor))
        tensors = tuple(t if isinstance(t, Tensor) else Tensor(np.asarray(t, dtype)) for t in inputs)
        output = self.compute(*[t.data for t in tensors], **options)
        if not (grad_mode[0] and self.gradient is not None and any(t.requires_grad for t in tensors)):
            return Tensor(output)
        return Tensor(output, requires_grad=True, node=Node(self, tensors, options, output))

    def differentiated_by(self, rule: Callable[..., Sequence[Array | None]]) -> Callable[..., Sequence[Array | None]]:
        """Decorate the rule: (gradient, output, *inputs, **options) -> a gradient for each of the first inputs."""
        self.gradient = rule
        return rule


def _spread(gradient: Array, x: Array, rows: Array) -> Array:
    found = np.zeros_like(x)
    found[np.arange(len(rows)), rows] = gradient
    return found


add, sub, mul, div = Op("add", np.add), Op("sub", np.subtract), Op("mul", np.multiply), Op("div", np.divide)
neg, exp, log, sqrt = Op("neg", np.negative), Op("exp", np.exp), Op("log", np.log), Op("sqrt", np.sqrt)
matmul, transpose = Op("matmul", np.matmul), Op("transpose", np.transpose)
relu, positive = Op("relu", lambda x: np.maximum(x, x.dtype.type(0))), Op("gt", lambda x: (x > 0).astype(x.dtype))
sum_ = Op("sum", lambda x, axis=None, keepdims=False: np.sum(x, axis=axis, keepdims=keepdims))
mean = Op("mean", lambda x, axis=None, keepdims=False: np.mean(x, axis=axis, keepdims=keepdims))
maximum = Op("amax", lambda x, axis=None, keepdims=False: np.max(x, axis=axis, keepdims=keepdims))
reshape, expand = Op("reshape", lambda x, shape: np.reshape(x, shape)), Op("expand", np.broadcast_to)
pick, spread = Op("gather", lambda x, rows: x[np.arange(len(rows)), rows]), Op("scatter", _spread)
cast = Op("to", lambda x, dtype: x.astype(dtype))
for _name, _op in {"add": add, "sub": sub, "mul": mul, "truediv": div, "matmul": matmul}.items():
    setattr(Tensor, f"__{_name}__", lambda a, b, op=_op: op(a, b))

add.differentiated_by(lambda g, out, a, b: (g, g))
sub.differentiated_by(lambda g, out, a, b: (g, neg.compute(g)))
mul.differentiated_by(lambda g, out, a, b: (mul.compute(g, b), mul.compute(g, a)))
neg.differentiated_by(lambda g, out, x: (neg.compute(g),))
exp.differentiated_by(lambda g, out, x: (mul.compute(g, out),))
log.differentiated_by(lambda g, out, x: (div.compute(g, x),))
sqrt.differentiated_by(lambda g, out, x: (div.compute(mul.compute(g, g.dtype.type(0.5)), out),))
relu.differentiated_by(lambda g, out, x: (mul.compute(g, positive.compute(x)),))
reshape.differentiated_by(lambda g, out, x, shape: (reshape.compute(g, shape=x.shape),))
pick.differentiated_by(lambda g, out, x, rows: (spread.compute(g, x, rows),))
cast.differentiated_by(lambda g, out, x, dtype: (cast.compute(g, dtype=x.dtype),))


@div.differentiated_by
def _(g: Array, out: Array, a: Array, b: Array) -> Sequence[Array]:
    part = div.compute(g, b)
    return part, neg.compute(mul.compute(part, out))


@matmul.differentiated_by
def _(g: Array, out: Array, a: Array, b: Array) -> Sequence[Array]:
    return matmul.compute(g, transpose.compute(b)), matmul.compute(transpose.compute(a), g)


@sum_.differentiated_by
def _(g: Array, out: Array, x: Array, axis: int | None = None, keepdims: bool = False) -> Sequence[Array]:
    if axis is not None and not keepdims:
        g = reshape.compute(g, shape=np.sum(x, axis=axis, keepdims=True).shape)
    return (expand.compute(g, shape=x.shape),)


@mean.differentiated_by
def _(g: Array, out: Array, x: Array, axis: int | None = None, keepdims: bool = False) -> Sequence[Array]:
    g = div.compute(g, g.dtype.type(x.size / max(out.size, 1)))
    return sum_.gradient(g, out, x, axis=axis, keepdims=keepdims)


def log_softmax(x: Tensor) -> Tensor:
    """Logarithms of probabilities over the last dimension, computed without leaving the format."""
    shifted = x - maximum(x, axis=-1, keepdims=True)
    return shifted - log(sum_(exp(shifted), axis=-1, keepdims=True))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood of labels (n,) under logits (n, classes)."""
    return neg(mean(pick(log_softmax(logits), labels)))


class Module:
    """A part of a model; it has a `forward`, and owns parameters, modules and lists of modules among its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def named_modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """(path, module) of itself and all below; its own path is "" unless it is told."""
        yield path, self
        for name, value in vars(self).items():
            parts = value if isinstance(value, list) else [value]
            for i, part in enumerate(parts):
                if isinstance(part, Module):
                    own = f"{name}.{i}" if isinstance(value, list) else name
                    yield from part.named_modules(f"{path}.{own}" if path else own)

    def named_parameters(self, path: str = "") -> Iterator[tuple[str, Parameter]]:
        """(path, parameter) of all."""
        for own, module in self.named_modules(path):
            for name, value in vars(module).items():
                if isinstance(value, Parameter):
                    yield (f"{own}.{name}" if own else name), value

    def parameters(self) -> list[Parameter]:
        """All, in the order of the model."""
        return [parameter for _, parameter in self.named_parameters()]


class Linear(Module):
    """x @ weight + bias, of x (n, n_in) and weight (n_in, n_out)."""

    def __init__(self, n_in: int, n_out: int, *, draw: np.random.Generator, dtype: Any = np.float32) -> None:
        self.weight = Parameter((draw.standard_normal((n_in, n_out)) / np.sqrt(n_in)).astype(dtype))
        self.bias = Parameter(np.zeros(n_out, dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Optimizer:
    """Holds parameters in groups with their options, and state by parameter.

    Args:
        parameters: of one group, or groups: mappings with `params` and options of their own.
        options: of all groups that say nothing else.

    A class has its `defaults`, and `change`: what is taken off a parameter, given its gradient, its state (which is
    brought up to date) and the group's options.
    """

    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, parameters: Sequence[Any], **options: Any) -> None:
        groups = parameters if isinstance(parameters[0], dict) else [{"params": parameters}]
        self.param_groups: list[dict[str, Any]] = [{**self.defaults, **options, **group} for group in groups]
        self.state: dict[Parameter, dict[str, Any]] = {}

    def parameters(self) -> list[Parameter]:
        """Those that have a gradient."""
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def step(self) -> None:
        """Change each parameter that has a gradient."""
        with np.errstate(all="ignore"):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        gradient = p.grad + group["weight_decay"] * p.data if group["weight_decay"] else p.grad
                        p.data = p.data - self.change(gradient, self.state.setdefault(p, {}), **group)


class SGD(Optimizer):
    """Stochastic gradient descent."""

    defaults: ClassVar[dict[str, Any]] = {"momentum": 0.0, "weight_decay": 0.0}

    def change(self, g: Array, state: dict[str, Any], *, lr: float, momentum: float, **_: Any) -> Array:
        """See Optimizer."""
        if momentum:
            g = state["momentum_buffer"] = momentum * state["momentum_buffer"] + g if state else g
        return lr * g


class Adam(Optimizer):
    """Adam, with its state in the format of the parameters."""

    defaults: ClassVar[dict[str, Any]] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}

    def change(self, g: Array, state: dict[str, Any], *, lr: float, betas: Any, eps: float, **_: Any) -> Array:
        """See Optimizer."""
        if not state:
            state.update(step=0, exp_avg=np.zeros_like(g), exp_avg_sq=np.zeros_like(g))
        state["step"] += 1
        state["exp_avg"] = betas[0] * state["exp_avg"] + (1 - betas[0]) * g
        state["exp_avg_sq"] = betas[1] * state["exp_avg_sq"] + (1 - betas[1]) * g * g
        root = np.sqrt(state["exp_avg_sq"] / (1 - betas[1] ** state["step"]))
        return lr / (1 - betas[0] ** state["step"]) * state["exp_avg"] / (root + eps)
