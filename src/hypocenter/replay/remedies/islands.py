"""`hypocenter.island(model, ["block1.0.attn"])`: modules, or ops in them, that compute in float32 from now on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

import torch
from torch import nn

from hypocenter.errors import ConfigError
from hypocenter.replay.remedies.casts import NARROWER
from hypocenter.replay.remedies.layer import Layer
from hypocenter.replay.remedies.op_forward import OpForward
from hypocenter.replay.remedies.targets import resolve
from hypocenter.replay.remedies.wide_forward import WideForward


class IslandHandle:
    """Islands that are in place; take them away with `remove()`, or use it as a context manager."""

    def __init__(self, targets: tuple[str, ...], layers: Sequence[Layer]) -> None:
        self.targets = targets
        self._layers = list(layers)

    def remove(self) -> None:
        """Give the modules their own forward back. Doing it twice does nothing."""
        for layer in reversed(self._layers):
            layer.take_off()
        self._layers.clear()

    def __enter__(self) -> IslandHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{'islands' if self._layers else 'removed islands'}: {', '.join(self.targets)}>"


def island(
    model: nn.Module, names: Sequence[str] | str, *, dtype: torch.dtype = torch.float32, cast_back: bool = True
) -> IslandHandle:
    """Make modules compute in float32 inside autocast and inside a `.half()` or `.bfloat16()` model.

    Inputs, parameters and buffers are cast inside the forward, autocast is off in it, and the result gets the format
    of the inputs again. Parameters stay what they are: their gradients flow back through the cast, optimizers,
    `state_dict`, wrappers (DDP, torch.compile, checkpointing; before or after) and all other modules see no change.
    Islands stay until `remove()`; with activation checkpointing not before backward, which calls the forward again.

    Limits: an argument that the forward changes in place is not changed for the caller, if it had to be cast. In a
    half-precision model a checkpointed *function* inside the island (not a checkpointed module) that reads parameters
    itself finds them narrow again in its recomputation, which torch reports.

    Args:
        model: wrapped or not.
        names: module paths, with or without wrappers' prefixes; globs (`blocks.*.attn`); `"attn:matmul"` for a torch
            function within a module's forward, named as in your code (`matmul` also means `@`).
        dtype: float32; float64 for a reference; bfloat16 instead of float16.
        cast_back: False leaves results in `dtype`, for values that do not fit the narrow format before a norm or a
            division brings them back. Scalar results (losses) are never cast back.

    Raises:
        UnknownNameError: no such module or function; names the nearest.
        ConfigError: a dtype that an island cannot have.
    """
    if dtype not in NARROWER:
        known = ", ".join(str(d).removeprefix("torch.") for d in NARROWER)
        raise ConfigError(
            f"an island cannot compute in {dtype}", where="hypocenter.island(dtype=...)", fix=f"use {known}"
        )
    layers: list[Layer] = []
    targets = resolve(model, names)
    for target in targets:
        if target.functions:
            layers += put_functions(target.module, target.functions, dtype=dtype, cast_back=cast_back)
        else:
            layers += put_module(target.module, dtype=dtype, cast_back=cast_back)
    return IslandHandle(tuple(str(target) for target in targets), layers)


def put_module(module: nn.Module, *, dtype: torch.dtype, cast_back: bool | None) -> list[Layer]:
    """Put one module, with all below it, on an island; the layers to take off again."""
    return _put(WideForward(m, dtype=dtype, cast_back=cast_back, outermost=m is module) for m in module.modules())


def put_functions(module: nn.Module, functions: Sequence[str], *, dtype: torch.dtype, cast_back: bool) -> list[Layer]:
    """Put some torch functions within a module's forward on an island; the layers to take off again."""
    return _put(
        OpForward(m, functions, dtype=dtype, cast_back=cast_back, outermost=m is module) for m in module.modules()
    )


def _put(layers: Iterable[Layer]) -> list[Layer]:
    done = list(layers)
    for layer in done:
        layer.put_on()
    return done
