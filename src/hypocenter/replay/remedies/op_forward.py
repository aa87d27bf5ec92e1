"""Named torch functions in float32 inside one module's forward: an island smaller than a module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hypocenter.replay.remedies.casts import NARROWER, Caster, back
from hypocenter.replay.remedies.layer import Layer
from hypocenter.replay.remedies.wide_forward import accelerator, autocast_off, in_recompute

ALSO: dict[str, tuple[str, ...]] = {"matmul": ("__matmul__", "__rmatmul__"), "__matmul__": ("matmul", "__rmatmul__")}
"""Functions that are another spelling of one: `@` is matmul."""

_HOMES: tuple[Any, ...] = (
    torch, Tensor, torch.nn.functional, torch.linalg, torch.special, torch.fft,
)  # fmt: skip


def is_function(name: str) -> bool:
    """Return whether torch has a function or method of this name that gives a new tensor (in-place ones do not)."""
    return not _in_place(name) and any(callable(getattr(home, name, None)) for home in _HOMES)


def function_names() -> list[str]:
    """Return all names that an island of an op may have."""
    return sorted({name for home in _HOMES for name in dir(home) if is_function(name) and name[0].islower()})


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


class OpForward(Layer):
    """Call the forward with some torch functions in `dtype`; those called by modules below it count too.

    Args:
        functions: as users write them: matmul (also `@`), einsum, sum, softmax, bmm, ...
        cast_back: give each result the format of its operands.
    """

    def __init__(
        self,
        module: nn.Module,
        functions: Sequence[str],
        *,
        dtype: torch.dtype,
        cast_back: bool,
        outermost: bool = True,
    ) -> None:
        super().__init__(module, outermost=outermost)
        self.names = tuple(functions)
        self.functions = frozenset(n for name in functions for n in (name, *ALSO.get(name, ())))
        self.dtype = dtype
        self.cast_back = cast_back
        self.is_checked = not outermost

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled or not (self.outermost or in_recompute()):
            return self.wrapped(*args, **kwargs)
        mode = FunctionsIn(self.functions, self.dtype, self.cast_back)
        with mode:
            result = self.wrapped(*args, **kwargs)
        if not torch.compiler.is_compiling() and not self.is_checked:
            self._check(mode.called)
        return result

    def _check(self, called: set[str]) -> None:
        """Warn once of functions that were not called: a mode does not see what torch's own Python code calls."""
        self.is_checked = True
        for name in self.names:
            if called.isdisjoint((name, *ALSO.get(name, ()))):
                warnings.warn(
                    f"hypocenter.island: {type(self.module).__name__} did not call {name!r} itself, so that nothing of "
                    "it is in float32; take the whole module",
                    stacklevel=2,
                )


class FunctionsIn(TorchFunctionMode):
    """Compute the named torch functions in `dtype` within this block, autocast off."""

    def __init__(self, functions: frozenset[str], dtype: torch.dtype, cast_back: bool) -> None:
        super().__init__()
        self.functions, self.dtype, self.cast_back = functions, dtype, cast_back
        self.called: set[str] = set()  # of `functions`; not kept in a compiled graph
        accelerator()  # before anything is compiled

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ not in self.functions or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if not torch.compiler.is_compiling():
            self.called.add(func.__name__)
        caster = Caster(self.dtype, NARROWER[self.dtype])
        args, kwargs = caster.cast(args), caster.cast(kwargs)
        result = autocast_off(self.dtype, func, args, kwargs)
        if not self.cast_back or caster.first is None:
            return result
        return back(result, self.dtype, caster.first)
