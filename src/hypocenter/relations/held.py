"""What is drawn at random or computed over the whole batch by its own definition, held still while inputs change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hypocenter.tap.state import RngState, capture_rng
from hypocenter.tap.tape import storage_of

_RATES = {
    "dropout": 1, "dropout_": 1, "alpha_dropout": 1, "alpha_dropout_": 1, "dropout1d": 1, "dropout2d": 1,
    "dropout3d": 1, "feature_alpha_dropout": 1, "feature_alpha_dropout_": 1, "feature_dropout": 1,
    "feature_dropout_": 1, "native_dropout": 1,
}  # fmt: skip
_OF_SHAPE = frozenset(
    {"__get__", "__len__", "dim", "is_floating_point", "ndimension", "nelement", "numel", "size", "stride"}
)
"""What asks for no value of a tensor."""
_ATTENTION, _ATTENTION_RATE = "scaled_dot_product_attention", 4
_TRAINING = 5  # place of `training` among the arguments of `batch_norm`


class Held(TorchFunctionMode):
    """Drops no value, embeds other tokens where it is told to, and normalises with the averages of a BatchNorm.

    Args:
        embedded: (tokens, those to look up in their place).

    Attributes:
        has_batch_norm: one was met in training that has averages: its statistics mix samples by definition.
        has_own_statistics: one that has none was met, and left as it is.
        read: storages of tensors that an operation was given, beside questions about their shape.
    """

    def __init__(self, embedded: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        super().__init__()
        self._embedded = embedded
        self.has_batch_norm = self.has_own_statistics = False
        self.read: set[int] = set()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name not in _OF_SHAPE:
            given = (*args, *kwargs.values(), *(t for each in args if isinstance(each, (list, tuple)) for t in each))
            self.read |= {storage_of(each) for each in given if isinstance(each, Tensor)}
        if name in _RATES:
            args = _with(args, kwargs, _RATES[name], "p", 0.0)
        elif name == _ATTENTION:
            args = _with(args, kwargs, _ATTENTION_RATE, "dropout_p", 0.0)
        elif name == "batch_norm" and _given(args, kwargs, _TRAINING, "training"):
            if _given(args, kwargs, 1, "running_mean") is None:
                self.has_own_statistics = True
            else:
                self.has_batch_norm = True
                args = _with(args, kwargs, _TRAINING, "training", False)
        elif name == "embedding" and self._embedded:
            args = self._other_tokens(args)
        return func(*args, **kwargs)

    def _other_tokens(self, args: Any) -> Any:
        tokens = args[0] if args else None
        for old, new in self._embedded:
            if isinstance(tokens, Tensor) and tokens.shape == old.shape and torch.equal(tokens, old):
                return (new, *args[1:])
        return args


def _given(args: Any, kwargs: dict[str, Any], at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)


def _with(args: Any, kwargs: dict[str, Any], at: int, name: str, value: Any) -> Any:
    """The arguments with another value for one of them."""
    if len(args) > at:
        return (*args[:at], value, *args[at + 1 :])
    kwargs[name] = value
    return args


def seeded(seed: int) -> None:
    """All generators that a forward usually draws from, begun anew."""
    import random

    import numpy as np

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def has_drawn(before: RngState) -> bool:
    """Whether one of these generators has been drawn from since."""
    now = capture_rng()
    pairs = [(before.cpu, now.cpu), (before.device, now.device), *zip(before.devices, now.devices, strict=False)]
    is_torch = any(a is not None and b is not None and not torch.equal(a, b) for a, b in pairs)
    of_numpy = [state and (state[1].tobytes(), *state[2:]) for state in (before.numpy, now.numpy)]
    return is_torch or before.python != now.python or of_numpy[0] != of_numpy[1]
