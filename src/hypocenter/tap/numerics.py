"""The settings that choose kernels and their precision: which attention, TF32, cuDNN's choice. Captured, entered again.

A replay under others comes to other bits on healthy hardware. FP8 autocast of Transformer Engine is only looked at: its
scales follow what has been computed since, so that nobody can go back to those of the run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from hypocenter.unwarned import unwarned

_FP8 = ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8")  # the newer one first


class _Switch(NamedTuple):
    get: Callable[[], Any]
    set: Callable[..., None]


def _switches() -> list[_Switch]:
    """Return the switches that this version of torch has. One that sets others too comes before them."""
    core: Any = torch._C
    names = [("_get_float32_matmul_precision", "_set_float32_matmul_precision")]
    has_precisions = hasattr(core, "_get_fp32_precision_getter")  # torch 2.9; then the older names may raise
    if not has_precisions:
        names += [(f"_get_{kind}_allow_tf32", f"_set_{kind}_allow_tf32") for kind in ("cublas", "cudnn", "onednn")]
    names += [(f"_get_cudnn_{what}", f"_set_cudnn_{what}") for what in ("enabled", "benchmark", "deterministic")]
    names += [(f"_get_mkldnn_{what}", f"_set_mkldnn_{what}") for what in ("enabled", "deterministic")]
    narrow = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation")
    names += [(f"_get_cublas_allow_{what}", f"_set_cublas_allow_{what}") for what in narrow]
    kinds = ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3")
    names += [(f"_get_{kind}_sdp_enabled", f"_set_sdp_use_{kind}") for kind in kinds]
    half = "math_sdp_allow_fp16_bf16_reduction"
    names += [(f"_get_{half}", f"_set_{half}"), ("_get_sdp_priority_order", "_set_sdp_priority_order")]
    pairs = ((getattr(core, get, None), getattr(core, put, None)) for get, put in names)
    found = [_Switch(get, put) for get, put in pairs if get is not None and put is not None]
    found.append(_Switch(core._get_deterministic_algorithms, _set_deterministic))
    found.append(_Switch(core._get_deterministic_algorithms_warn_only, _set_warn_only))
    if has_precisions:
        has_cuda = torch.version.cuda is not None or torch.version.hip is not None
        backends = ("mkldnn", "cuda") if has_cuda else ("mkldnn",)
        for at in (("generic", "all"), *((b, o) for b in backends for o in ("all", "matmul", "conv", "rnn"))):
            get, put = core._get_fp32_precision_getter, core._set_fp32_precision_setter
            found.append(_Switch(partial(get, *at), partial(put, *at)))
    return found


def _set_deterministic(is_on: bool) -> None:
    torch.use_deterministic_algorithms(is_on, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())


def _set_warn_only(is_on: bool) -> None:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=is_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The value of each setting; None where torch would not tell."""

    values: tuple[Any, ...]
    is_fp8: bool = False  # inside Transformer Engine's FP8 autocast


_SWITCHES = _switches()
_GETTERS = tuple(switch.get for switch in _SWITCHES)
_last = [Numerics(values=())]


def capture_numerics() -> Numerics:
    """Read the settings as they are now, in a few microseconds. Returns the same object until something changes."""
    found: list[Any] = []
    try:
        for get in _GETTERS:  # for each operation of loss code: a comprehension is a call
            found.append(get())  # noqa: PERF401
    except RuntimeError:
        found = [_read(switch) for switch in _SWITCHES]
    modules, last = sys.modules, _last[0]
    is_fp8 = (_FP8[0] in modules or _FP8[1] in modules) and _is_fp8()
    values = tuple(found)
    if last.values != values or last.is_fp8 != is_fp8:
        last = _last[0] = Numerics(values=values, is_fp8=is_fp8)
    return last


@contextlib.contextmanager
def numerics_entered(wanted: Numerics | None) -> Generator[None, None, None]:
    """Run a block under captured settings; None: under those that are set."""
    before = capture_numerics()
    if wanted is None or wanted.values == before.values:
        yield
        return
    _put(wanted)
    try:
        yield
    finally:
        _put(before)


def _put(wanted: Numerics) -> None:
    with unwarned():
        for switch, value in zip(_SWITCHES, wanted.values, strict=True):
            if value is not None and _read(switch) != value:
                switch.set(*value if isinstance(value, tuple) else (value,))


def _read(switch: _Switch) -> Any:
    try:
        return switch.get()
    except RuntimeError:  # torch refuses to tell where older and newer names of a setting contradict each other
        return None


def _is_fp8() -> bool:
    for name in _FP8:
        if (module := sys.modules.get(name)) is not None:
            manager = getattr(module, "FP8GlobalStateManager", None)
            return manager is not None and bool(manager.is_fp8_enabled())
    return False
