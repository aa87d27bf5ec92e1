"""Random states that frameworks keep in Python objects, beside the generators of torch.

Megatron-Core's, Transformer Engine's and DeepSpeed's trackers hold a state for each kind of dropout mask, and lend it
to the device's generator for a while. What makes an object one of these are its methods `get_states` and `set_states`,
and what the first gives; it is found among the globals of modules that know such a class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

_ELSEWHERE = frozenset({*sys.stdlib_module_names, "hypocenter", "numpy", "torch"})  # packages without any
_STAY = frozenset({"builtins", "typing", "_frozen_importlib", "_frozen_importlib_external", "logging"})
"""Modules whose objects no tracker takes the place of."""


@dataclass(frozen=True, slots=True)
class TrackerState:
    """A tracker, its states by name, and copies of those that change in place."""

    tracker: Any
    states: Mapping[str, Any]
    generators: Mapping[str, torch.Tensor]

    def put_back(self) -> None:
        """The tracker goes on from here."""
        for name, state in self.generators.items():
            self.states[name].set_state(state)
        self.tracker.set_states(dict(self.states))

    def numbers(self) -> dict[str, torch.Tensor]:
        """Each state as a tensor."""
        return {name: self.generators.get(name, state) for name, state in self.states.items()}

    def with_numbers(self, numbers: Mapping[str, torch.Tensor]) -> TrackerState:
        """The same tracker at other states."""
        generators = {name: numbers[name] for name in self.generators}
        states = {name: state if name in generators else numbers[name] for name, state in self.states.items()}
        return TrackerState(self.tracker, states, generators)


def capture_trackers() -> tuple[TrackerState, ...]:
    """The states of all trackers. Copies no tensor: a tracker puts another in its place."""
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
    """Names of globals that hold None, or an object of a class of the package's own: a tracker takes their place."""
    return [name for name, value in list(there.items()) if value is None or type(value).__module__ not in _STAY]


def _is_tracker(kind: type) -> bool:
    own = vars(kind)
    return "get_states" in own and "set_states" in own


_known = _Known()
