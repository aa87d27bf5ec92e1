"""The ambient state a forward pass depends on: random generators, autocast, grad mode. Captured, and entered again."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from hypocenter.capturing import is_capturing

_ELSEWHERE = frozenset({*sys.stdlib_module_names, "hypocenter", "numpy", "torch"})  # packages without any
_STAY = frozenset({"builtins", "typing", "_frozen_importlib", "_frozen_importlib_external", "logging"})


def _yes() -> bool:
    return True


def accelerator_type() -> str | None:
    """Return the device type of the accelerator in use (cuda, npu, xpu, ...); None in a process on the CPU alone."""
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
    can_tell = not captures and module is not None and getattr(module, "is_initialized", _yes)()
    numpy = sys.modules.get("numpy.random")
    return RngState(
        cpu=torch.default_generator.get_state(),
        device=module.get_rng_state() if module is not None and can_tell else None,
        device_type=device_type,
        python=random.getstate(),
        numpy=numpy.get_state() if numpy is not None else None,
        devices=_of_all_devices(module) if can_tell else (),
        trackers=() if captures else capture_trackers(),
        own=tuple([(each, each.get_state()) for each in own]) if own else (),
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
            _set_state(module, index, each)
        _set_state(module, None, state.device)
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy"].random.set_state(state.numpy)
    for each in state.trackers:
        each.put_back()
    for generator, own in state.own:
        generator.set_state(own)


def seeded(seed: int) -> None:
    """Begin the generators of Python, numpy, the CPU and the devices anew, as `torch.manual_seed` does."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(seed)
    torch.default_generator.manual_seed(seed)
    kind = accelerator_type()
    module = getattr(torch, kind) if kind else None
    if module is not None and getattr(module, "is_initialized", lambda: True)():
        for index in range(torch.accelerator.device_count()):
            generator = _without_reset(module, index)
            if generator is None:
                module.manual_seed_all(seed)
                return
            generator.manual_seed(seed)


def _set_state(module: Any, index: int | None, state: torch.Tensor) -> None:
    """Set the generator state of the device with this number; None: of the current one."""
    generator = _without_reset(module, index)
    if generator is not None:
        generator.set_state(state)
    elif index is None:
        module.set_rng_state(state)
    else:
        module.set_rng_state(state, index)


def _without_reset(module: Any, index: int | None) -> torch.Generator | None:
    """Return another generator that shares the state of the device's; None if there is no such thing.

    Where the state of CUDA's own generator object is set, the next LSTM or GRU with dropout draws a seed for cuDNN's
    dropout anew (`CUDAGeneratorImpl::reset_rnn_state`), which the run without us would not. The flag for it is the
    object's, and the state is shared with this one.
    """
    all_of_them = getattr(module, "default_generators", ())
    if not all_of_them:
        return None
    own = all_of_them[module.current_device() if index is None else index]
    share = getattr(own, "graphsafe_get_state", None)
    return share() if share is not None and own.device.type == "cuda" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambient:
    """Autocast of the CPU and the accelerator (off where not listed), and the grad mode."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache_enabled: bool
    grad: bool


_DEVICE_TYPES: list[tuple[str, ...]] = []


def _device_types() -> tuple[str, ...]:
    """Return the device types in use; `npu` exists once torch_npu is imported, so it is looked for until then."""
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


# Megatron-Core's, Transformer Engine's and DeepSpeed's trackers hold a state for each kind of dropout mask, and lend it
# to the device's generator for a while. What makes an object one of these are its methods `get_states` and
# `set_states`, and what the first gives; it is found among the globals of modules that know such a class.
"""Modules whose objects no tracker takes the place of."""


@dataclass(frozen=True, slots=True)
class TrackerState:
    """A tracker, its states by name, and copies of those that change in place."""

    tracker: Any
    states: Mapping[str, Any]
    generators: Mapping[str, torch.Tensor]

    def put_back(self) -> None:
        """Set the tracker back to these states."""
        for name, state in self.generators.items():
            self.states[name].set_state(state)
        self.tracker.set_states(dict(self.states))

    def numbers(self) -> dict[str, torch.Tensor]:
        """Return each state as a tensor, by name."""
        return {name: self.generators.get(name, state) for name, state in self.states.items()}

    def with_numbers(self, numbers: Mapping[str, torch.Tensor]) -> TrackerState:
        """Return the same tracker at other states."""
        generators = {name: numbers[name] for name in self.generators}
        states = {name: state if name in generators else numbers[name] for name, state in self.states.items()}
        return TrackerState(self.tracker, states, generators)


def capture_trackers() -> tuple[TrackerState, ...]:
    """Capture the states of all trackers. Copies no tensor: a tracker puts another in its place."""
    trackers = _known.all()
    return tuple([state for tracker in trackers if (state := _state_of(tracker)) is not None]) if trackers else ()


def _state_of(tracker: Any) -> TrackerState | None:
    try:
        states = dict(tracker.get_states())
        if not all(map(_is_random_state, states.values())):
            raise TypeError("these are no random states")
    except Exception:  # an object of another kind that has methods of these names
        _known.others[id(tracker)] = tracker
        return None
    generators = {name: s.get_state() for name, s in states.items() if isinstance(s, torch.Generator)}
    return TrackerState(tracker, states, generators)


def _is_random_state(value: Any) -> bool:
    return isinstance(value, torch.Generator) or (isinstance(value, torch.Tensor) and value.dtype == torch.uint8)


class _Known:
    """Modules that know a class of trackers. Each module is looked through once, when it is loaded.

    Attributes:
        others: by id objects that have turned out to be none.
    """

    def __init__(self) -> None:
        self.others: dict[int, Any] = {}
        self._seen: set[str] = set()
        self._n_loaded = 0
        self._classes: tuple[type, ...] = ()
        self._homes: dict[ModuleType, tuple[int, list[str]]] = {}  # number of globals, and those that may hold one

    def all(self) -> list[Any]:
        if len(sys.modules) != self._n_loaded:
            self._look()
        found: dict[int, Any] = {}
        for home, (n, names) in self._homes.items():
            there = vars(home)
            if len(there) != n:
                n, names = self._homes[home] = len(there), _changeable(there)
            for name in names:
                value = there.get(name)
                if isinstance(value, self._classes) and id(value) not in self.others:
                    found[id(value)] = value
        return list(found.values())

    def _look(self) -> None:
        self._n_loaded = len(sys.modules)
        for name, module in list(sys.modules.items()):
            if name in self._seen or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            self._seen.add(name)
            if name.partition(".")[0] in _ELSEWHERE or not hasattr(module, "__dict__"):
                continue
            classes = [each for each in list(vars(module).values()) if isinstance(each, type) and _is_tracker(each)]
            if classes:
                self._homes[module] = 0, []
                self._classes = tuple({*self._classes, *classes})


def _changeable(there: Mapping[str, Any]) -> list[str]:
    """Name globals that hold None or an object of the package's own classes: a tracker may take their place."""
    return [name for name, value in list(there.items()) if value is None or type(value).__module__ not in _STAY]


def _is_tracker(kind: type) -> bool:
    own = vars(kind)
    return "get_states" in own and "set_states" in own


_known = _Known()
