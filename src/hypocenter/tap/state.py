"""The ambient state a forward pass depends on: random generators, autocast, grad mode. Captured, and entered again."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.capturing import is_capturing
from hypocenter.tap.trackers import TrackerState, capture_trackers


def accelerator_type() -> str | None:
    """The device type of the accelerator in use (cuda, npu, xpu, ...), or None on a CPU-only process."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device.type if device is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RngState:
    """The states of every generator a forward may draw from.

    Attributes:
        device: of the current device.
        devices: of all, by index; empty where there is one.
        trackers: of the objects in which frameworks keep more.
        own: of generators that the program has made itself.
    """

    cpu: torch.Tensor
    device: torch.Tensor | None
    device_type: str | None
    python: Any
    numpy: Any
    devices: tuple[torch.Tensor, ...] = ()
    trackers: tuple[TrackerState, ...] = ()
    own: tuple[tuple[torch.Generator, torch.Tensor], ...] = ()


def capture_rng(own: Iterable[torch.Generator] = ()) -> RngState:
    """Copy the states of all generators, and of these of the program's own.

    No device synchronisation: device generators keep their state on the host. Where a device captures a
    graph it does not give its state: None.
    """
    device_type = accelerator_type()
    module = getattr(torch, device_type) if device_type else None
    captures = is_capturing(device_type)
    can_tell = not captures and getattr(module, "is_initialized", lambda: True)()
    numpy = sys.modules.get("numpy.random")
    return RngState(
        cpu=torch.get_rng_state(),
        device=module.get_rng_state() if module is not None and can_tell else None,
        device_type=device_type,
        python=random.getstate(),
        numpy=numpy.get_state() if numpy is not None else None,
        devices=_of_all_devices(module) if module is not None and can_tell else (),
        trackers=() if captures else capture_trackers(),
        own=tuple((each, each.get_state()) for each in own),
    )


def _of_all_devices(module: Any) -> tuple[torch.Tensor, ...]:
    n = torch.accelerator.device_count()
    return tuple(module.get_rng_state(index) for index in range(n)) if n > 1 else ()


def restore_rng(state: RngState) -> None:
    """Put the generators back where `capture_rng` found them."""
    torch.set_rng_state(state.cpu)
    if state.device is not None and state.device_type is not None:
        module = getattr(torch, state.device_type)
        for index, each in enumerate(state.devices):
            module.set_rng_state(each, index)
        module.set_rng_state(state.device)
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy"].random.set_state(state.numpy)
    for each in state.trackers:
        each.put_back()
    for generator, own in state.own:
        generator.set_state(own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambient:
    """Autocast of the CPU and the accelerator (off where not listed), and the grad mode."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache_enabled: bool
    grad: bool


_DEVICE_TYPES: list[tuple[str, ...]] = []


def _device_types() -> tuple[str, ...]:
    """Asked again until there is an accelerator: `npu` exists once torch_npu is imported."""
    if _DEVICE_TYPES:
        return _DEVICE_TYPES[0]
    accelerator = accelerator_type()
    if not accelerator:
        return ("cpu",)
    _DEVICE_TYPES.append(("cpu", accelerator))
    return _DEVICE_TYPES[0]


def capture_ambient() -> Ambient:
    """Read the thread's autocast and grad mode."""
    if not torch._C._is_any_autocast_enabled():  # the usual case, and this runs for each operation of loss code
        return _PLAIN_WITH_GRAD if torch.is_grad_enabled() else _PLAIN_WITHOUT_GRAD
    return Ambient(
        autocast=tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _device_types()
        ),
        cache_enabled=torch.is_autocast_cache_enabled(),
        grad=torch.is_grad_enabled(),
    )


_PLAIN_WITH_GRAD = Ambient(autocast=(), cache_enabled=True, grad=True)
_PLAIN_WITHOUT_GRAD = Ambient(autocast=(), cache_enabled=True, grad=False)


@contextlib.contextmanager
def entered(ambient: Ambient) -> Generator[None, None, None]:
    """Run a block under a captured ambient state."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(ambient.grad))
        known = {kind for kind, _, _ in ambient.autocast}
        off = ((kind, False, torch.get_autocast_dtype(kind)) for kind in _device_types() if kind not in known)
        for kind, enabled, dtype in (*ambient.autocast, *off):
            if enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=ambient.cache_enabled)
                )
        yield
