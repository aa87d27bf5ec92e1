"""`--no-dropout`: no value is dropped at random, in modules, functions and attention; the modules keep their rates.

It is imposed where values are dropped, at the call: a model's own `nn.Dropout(0.1)` still says 0.1 in a report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hypocenter.config import Config
from hypocenter.session.imposed.later import when_imported

_FUNCTIONAL = (
    "dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout",
)  # fmt: skip
_OF_TORCH = (
    "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
    "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout",
)  # fmt: skip
_RECURRENT = {"lstm": 5, "gru": 5, "rnn_tanh": 5, "rnn_relu": 5}  # place of `dropout`; one later with packed sequences
_FLASH = (
    "flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_qkvpacked_func",
    "flash_attn_kvpacked_func", "flash_attn_varlen_kvpacked_func",
)  # fmt: skip
_done: list[bool] = []


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Replace the functions that drop values at random, if `--no-dropout` was given."""
    if not config.no_dropout:
        return {}
    if not _done:
        _done.append(True)
        _impose()
    return {"dropout": "dropout off"}


def _impose() -> None:
    functional: Any = torch.nn.functional
    for name in _FUNCTIONAL:
        setattr(functional, name, _keeping(getattr(functional, name), "p", 1))
    for name in _OF_TORCH:
        setattr(torch, name, _keeping(getattr(torch, name), "p", 1))
    attention = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _keeping(attention, "dropout_p", 4)
    of_c: Any = torch._VF  # type: ignore[attr-defined]
    for name, at in _RECURRENT.items():
        setattr(of_c, name, _recurrent(getattr(of_c, name), at))
    when_imported("flash_attn", lambda: _replace("flash_attn", _FLASH, "dropout_p"))
    when_imported("torchvision.ops.stochastic_depth", _stochastic_depth)
    when_imported("timm.layers.drop", _drop_path)


def _keeping(function: Callable[..., Any], name: str, at: int) -> Callable[..., Any]:
    """Wrap a function so that its dropout rate (argument `name`, in place `at`) is 0, whether given or by default."""

    def without_dropout(*args: Any, **kwargs: Any) -> Any:
        if len(args) > at:
            args = (*args[:at], 0.0, *args[at + 1 :])
        else:
            kwargs[name] = 0.0
        return function(*args, **kwargs)

    without_dropout.__name__ = getattr(function, "__name__", name)
    without_dropout.__doc__ = function.__doc__
    without_dropout.__wrapped__ = function  # type: ignore[attr-defined]
    return without_dropout


def _recurrent(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    def without_dropout(*args: Any) -> Any:
        place = at if isinstance(args[3], bool) else at + 1  # packed: batch_sizes comes second
        return function(*args[:place], 0.0, *args[place + 1 :])

    return without_dropout


def _replace(module: str, names: tuple[str, ...], argument: str) -> None:
    import sys

    found: Any = sys.modules[module]
    for name in names:
        function = getattr(found, name, None)
        if function is not None:
            setattr(found, name, _named(function, argument))


def _named(function: Callable[..., Any], argument: str) -> Callable[..., Any]:
    """Wrap a function as `_keeping` does; its signature tells in which place the rate stands."""
    import inspect

    names = list(inspect.signature(function).parameters)
    return _keeping(function, argument, names.index(argument)) if argument in names else function


def _stochastic_depth() -> None:
    _replace("torchvision.ops.stochastic_depth", ("stochastic_depth",), "p")


def _drop_path() -> None:
    _replace("timm.layers.drop", ("drop_path",), "drop_prob")
