"""Weights that a softmax has made to sum to 1, and over which dimension they are summed with values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_KEEPS = frozenset({"dropout", "to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone"})
_PRODUCTS = frozenset({"matmul", "bmm", "__matmul__", "__rmatmul__"})
_MOST = 64  # softmaxes that are followed


@dataclass(frozen=True, slots=True)
class Mixed:
    """Attention weights that sum to 1 over one dimension while the product sums over the other.

    Attributes:
        dim: over which they sum to 1.
        shape: of the weights.
    """

    dim: int
    shape: tuple[int, ...]


class Weights:
    """Follow the results of softmaxes to the products they are used in, through casts, dropout and views."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int]] = {}  # by address: weights, which are held, and dimension

    def hear(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Mixed | None:
        """Note one call; return what is wrong with it, or None."""
        if name in _PRODUCTS:
            pair = args[::-1] if name == "__rmatmul__" else args
            found = (self._mixed(each, -1 - at) for at, each in enumerate(pair[:2]) if isinstance(each, Tensor))
            return next((each for each in found if each is not None), None)
        given = args[0] if args else None
        if not isinstance(result, Tensor) or not isinstance(given, Tensor):
            return None
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and result.dim() > 1 and not _is_numbered_by_a_parameter(given, dim):
                self._keep(result, dim % result.dim())
        elif name in _KEEPS and result.shape == given.shape:
            known = self._of(given)
            if known is not None and known[0].shape == result.shape and known[0].stride() == given.stride():
                self._keep(result, known[1])
        return None

    def _keep(self, weights: Tensor, dim: int) -> None:
        if len(self._known) < _MOST:
            self._known[_address(weights)] = weights, dim

    def _of(self, tensor: Tensor) -> tuple[Tensor, int] | None:
        return self._known.get(_address(tensor))

    def _mixed(self, operand: Tensor, summed: int) -> Mixed | None:
        """Return what is wrong with the weights that this operand of a product views; None if nothing is.

        Args:
            summed: its dimension that the product sums over.
        """
        known = self._of(operand)
        if known is None or operand.dim() < 2 or operand.shape[-1] != operand.shape[-2] or operand.shape[-1] < 2:
            return None  # only of places with places: sums over points that share out among clusters are none
        weights, dim = known
        is_one = [operand.stride(d) == weights.stride(dim) and operand.shape[d] == weights.shape[dim] for d in (-1, -2)]
        other = -1 if summed == -2 else -2
        if is_one[-1 - summed] or not is_one[-1 - other]:
            return None
        return Mixed(dim, tuple(weights.shape))


_FACTORS = {"Mm": 2, "Addmm": 2, "Bmm": 3, "Baddbmm": 3}
_VIEWS = ("View", "UnsafeView", "Expand")
_LIKE_ITS_INPUT = frozenset({
    "Add", "Sub", "Mul", "Div", "Neg", "Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Softplus", "Elu", "LeakyRelu",
    "Clamp", "MaskedFill", "ToCopy", "Clone", "NativeDropout", "NativeLayerNorm", "NativeBatchNorm",
})  # fmt: skip


def _is_numbered_by_a_parameter(scores: Tensor, dim: int) -> bool:
    """Tell whether a dimension of scores is proven to be one of a parameter: clusters, classes or slots, not places.

    The dimension is followed back through products, views and what is computed elementwise, by autograd's graph.
    """
    node: Any = scores.grad_fn
    n, n_dims = scores.shape[dim], scores.dim()
    dim = dim % n_dims - n_dims
    for _ in range(_MOST):
        if node is None:
            return False
        kind = node.name().rpartition("::")[2].removesuffix("0").removesuffix("Backward")
        inputs = [each for each, _ in node.next_functions]
        if kind == "AccumulateGrad":
            return True
        if kind in _FACTORS and dim >= -2:
            n_dims = _FACTORS[kind]
            node = inputs[dim]  # columns are the second factor's, rows the first one's
        elif kind in ("T", "Transpose"):
            pair = (0, 1) if kind == "T" else (node._saved_dim0, node._saved_dim1)
            one, other = (
                each - (2**64 if each >= 2**63 else n_dims) for each in pair
            )  # of -1 autograd keeps 2**64 - 1
            node, dim = inputs[0], {one: other, other: one}.get(dim, dim)
        elif kind in _VIEWS:
            sizes = node._saved_self_sym_sizes
            n_dims = len(sizes)
            node = inputs[0] if n_dims >= -dim and sizes[dim] == n else None
        else:
            node = inputs[0] if kind in _LIKE_ITS_INPUT else None
    return False


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return -1
