"""Modules that can be executed again in NumPy, in float64, from recorded inputs, weights and attributes.

A recipe is only believed for a class if it gives the baseline's own output (isolate.py); so a class that
does something else than its name or its weights suggest leads to "cannot tell", not to an accusation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hypocenter.compare.values.bits import Array
from hypocenter.formats import FORMATS, format_of
from hypocenter.record.facts_file import ModuleFacts

Weights = Mapping[str, Array]
Recipe = Callable[[Array], Array]
_ONE_PLUS = ("Gemma", "Qwen3Next", "Qwen3_5")  # norms that store weight - 1 (transformers)
_erf = np.frompyfunc(math.erf, 1, 1)


def makers(module: ModuleFacts, weights: Weights, *, known_only: bool = False) -> list[str]:
    """Names of what the module may compute: of its class, else (unless `known_only`) of all that its weights allow."""
    kind = module.kind
    if kind in _KINDS:
        return [_KINDS[kind]]
    if kind.endswith("RMSNorm"):
        return ["rms-norm-plus-one" if kind.startswith(_ONE_PLUS) else "rms-norm"]
    if known_only:
        return []
    if not weights:
        return list(_PLAIN)
    weight = weights.get("weight")
    if weight is None or set(weights) - {"weight", "bias"}:
        return []
    return ["linear", "linear-transposed", "embedding"] if weight.ndim == 2 else ["layer-norm", "rms-norm"]


def named(name: str, module: ModuleFacts, weights: Weights, dtype: str) -> Recipe | None:
    """How to compute the output from the first input; None when weights or attributes do not fit.

    Args:
        name: one of `makers`.
        module: attributes.
        weights: its parameters in float64, by name.
        dtype: of the input (nn.RMSNorm without eps takes that of the format).
    """
    if name in _PLAIN:
        return _PLAIN[name](module.attributes)
    weight, bias = weights.get("weight"), weights.get("bias", np.float64(0.0))
    if name == "dropout":
        return (lambda x: x) if not module.training or not module.attributes.get("p") else None
    if name == "layer-norm":
        return _layer_norm(module.attributes, weight, bias)
    if weight is None:
        return None
    if name == "linear":
        return lambda x: x @ weight.T + bias
    if name == "linear-transposed":
        return lambda x: x @ weight + bias
    if name == "embedding":
        return lambda x: weight[x.astype(np.int64)]
    return _rms_norm(_eps(module.attributes, dtype), weight + 1.0 if name == "rms-norm-plus-one" else weight)


def _eps(attributes: Mapping[str, Any], dtype: str) -> float:
    for name in ("eps", "variance_epsilon", "epsilon"):
        if isinstance(attributes.get(name), (int, float)):
            return float(attributes[name])
    return (format_of(dtype) or FORMATS["float32"]).eps  # torch's own default


def _layer_norm(attributes: Mapping[str, Any], weight: Array | None, bias: Any) -> Recipe:
    shape = attributes.get("normalized_shape")
    n_dims = len(shape) if isinstance(shape, (list, tuple)) else 1
    eps = _eps(attributes, "float32")

    def run(x: Array) -> Array:
        axes = tuple(range(x.ndim - n_dims, x.ndim))
        centred = x - x.mean(axes, keepdims=True)
        y = centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + eps)
        return y * (1.0 if weight is None else weight) + bias

    return run


def _rms_norm(eps: float, weight: Array) -> Recipe:
    def run(x: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    return run


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _softmax(attributes: Mapping[str, Any]) -> Recipe | None:
    axis = attributes.get("dim")
    if not isinstance(axis, int):
        return None

    def run(x: Array) -> Array:
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    return run


_PLAIN: dict[str, Callable[[Mapping[str, Any]], Recipe | None]] = {
    "identity": lambda a: lambda x: x,
    "relu": lambda a: lambda x: np.maximum(x, 0.0),
    "silu": lambda a: lambda x: x * _sigmoid(x),
    "gelu-tanh": lambda a: _gelu_tanh,
    "quick-gelu": lambda a: lambda x: x * _sigmoid(1.702 * x),
    "sigmoid": lambda a: _sigmoid,
    "tanh": lambda a: np.tanh,
    "softmax": _softmax,
    "gelu": lambda a: _gelu_tanh if a.get("approximate") == "tanh" else _gelu,
}
_KINDS = {
    "Linear": "linear", "NonDynamicallyQuantizableLinear": "linear", "Conv1D": "linear-transposed",
    "Embedding": "embedding", "LayerNorm": "layer-norm", "T5LayerNorm": "rms-norm", "Dropout": "dropout",
    "Identity": "identity", "GELU": "gelu", "GELUActivation": "gelu", "NewGELUActivation": "gelu-tanh",
    "PytorchGELUTanh": "gelu-tanh", "QuickGELUActivation": "quick-gelu", "ReLU": "relu", "SiLU": "silu",
    "SiLUActivation": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softmax": "softmax",
}  # fmt: skip


def erf(x: Array) -> Array:
    """Element by element, to the last bit or so (about 100 ns each)."""
    return np.asarray(_erf(x), np.float64)
