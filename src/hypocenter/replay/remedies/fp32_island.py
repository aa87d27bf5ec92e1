"""Run modules in float32 inside autocast or inside a half-precision model."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch

from hypocenter.tap.state import accelerator_type
from hypocenter.tap.tree import replace_tensors

LOW = (torch.float16, torch.bfloat16)


@contextlib.contextmanager
def island(modules: list[torch.nn.Module], *, cast_back: bool) -> Generator[None, None, None]:
    """Within this block the modules compute in float32: inputs and parameters are cast up, autocast is off inside.

    Args:
        modules: each with all its submodules.
        cast_back: give the result the low precision that the inputs had; otherwise it stays float32, which is what
            lets a value above the format's maximum survive until a norm brings it back.
    """
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(_forward_in_float32(module, cast_back))
        yield


@contextlib.contextmanager
def _forward_in_float32(module: torch.nn.Module, cast_back: bool) -> Generator[None, None, None]:
    original = module.forward
    had_own = "forward" in vars(module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        low: list[torch.dtype] = []

        def up(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype in LOW:
                low.append(tensor.dtype)
                return tensor.float()
            return tensor

        args, kwargs = replace_tensors(args, up), replace_tensors(kwargs, up)
        with _autocast_off(), _parameters_in_float32(module):
            result = original(*args, **kwargs)
        if not cast_back or not low:
            return result
        return replace_tensors(result, lambda t: t.to(low[0]) if t.dtype == torch.float32 else t)

    module.forward = forward
    try:
        yield
    finally:
        if had_own:
            module.forward = original
        else:
            del module.forward


@contextlib.contextmanager
def _autocast_off() -> Generator[None, None, None]:
    accelerator = accelerator_type()
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", accelerator) if accelerator else ("cpu",):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def _parameters_in_float32(module: torch.nn.Module) -> Generator[None, None, None]:
    """Float32 copies in place of low-precision parameters and buffers; gradients flow through the cast."""
    saved: list[tuple[dict[str, Any], str, Any]] = []
    copies: dict[int, torch.Tensor] = {}
    try:
        for owner in module.modules():
            for table in (owner._parameters, owner._buffers):
                for key, tensor in table.items():
                    if tensor is not None and tensor.dtype in LOW:
                        saved.append((table, key, tensor))
                        if id(tensor) not in copies:
                            copies[id(tensor)] = tensor.float()
                        table[key] = copies[id(tensor)]  # type: ignore[assignment]
        yield
    finally:
        for table, key, tensor in saved:
            table[key] = tensor


def ancestors(site: str) -> list[str]:
    """A module path and the paths of its parents, innermost first: a.b.c, a.b, a, "" (the model itself)."""
    parts = site.split(".") if site else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def advice(target: str, *, cast_back: bool) -> str:
    """The change, in words a person can apply."""
    where = target or "the model"
    tail = "" if cast_back else ", and leave its output in float32"
    return f"run {where} in float32: torch.autocast(enabled=False) around it, inputs cast with .float(){tail}"
