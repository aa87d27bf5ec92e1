"""Trainable tensors that belong to no module, named by the user's variables: `w1`, `params[3]`, `self.w`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.names import NameMap
from hypocenter.tap.source import is_library
from hypocenter.tap.tape import is_trainable_leaf
from hypocenter.tap.weakly import Ref

_DEPTH = 4  # trainer.model.layers[0].w
_MOST_THINGS = 20_000  # looked at in one search
_OPAQUE = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, MethodType)


class TrainableLeaves:
    """Gives trainable leaves a name in the session's map of names, at the first backward that they are seen in.

    A leaf is a parameter if it was there in the first step that had any, or is there in a second one: an input that is
    asked for its gradient is a new tensor each time.
    """

    def __init__(self, names: NameMap) -> None:
        self._names = names
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        self._first_step: int | None = None
        self._met: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def look(self, leaves: Iterable[torch.Tensor], step: int, frame: FrameType | None) -> None:
        """Name the leaves that are parameters and have no name yet.

        Args:
            leaves: that the micro-batch has computed with.
            step: the one under way.
            frame: of the code that called backward.
        """
        new = [leaf for leaf in leaves if not self._is_known(leaf) and self._is_parameter(leaf, step)]
        if not new:
            return
        found = variables(new, frame)
        for leaf in new:
            self._known[id(leaf)] = Ref(leaf)
            if self._names.param_name(leaf) is None:
                self._names.add_tensor(leaf, found.get(id(leaf)) or f"parameter {tuple(leaf.shape)}")

    def _is_known(self, leaf: torch.Tensor) -> bool:
        known = self._known.get(id(leaf))
        return known is not None and known() is leaf

    def _is_parameter(self, leaf: torch.Tensor, step: int) -> bool:
        if self._first_step is None:
            self._first_step = step
        if isinstance(leaf, torch.nn.Parameter) or step == self._first_step:
            return True
        met = self._met.get(id(leaf))
        if met is not None and met[0]() is leaf:
            return met[1] != step
        if len(self._met) > 4096:  # inputs of long ago
            self._met.clear()
        self._met[id(leaf)] = Ref(leaf), step
        return False


def variables(wanted: Sequence[torch.Tensor], frame: FrameType | None) -> dict[int, str]:
    """Return, by a tensor's id, what the innermost code outside of libraries that has the tensor calls it."""
    missing = {id(tensor) for tensor in wanted}
    found: dict[int, str] = {}
    while frame is not None and missing:
        if not is_library(frame.f_code.co_filename):
            search = _Search(missing)
            for scope in (variables_of(frame), frame.f_globals):
                search.in_scope(scope)
            found |= search.found
            missing -= found.keys()
        frame = frame.f_back
    return found


class _Search:
    """A search through variables and what they hold; the first name in the order of the program counts."""

    def __init__(self, wanted: set[int]) -> None:
        self.found: dict[int, str] = {}
        self._wanted = wanted
        self._seen: set[int] = set()

    def in_scope(self, scope: Mapping[str, Any]) -> None:
        level = [(name, value) for name, value in list(scope.items()) if not name.startswith("__")]
        for _ in range(_DEPTH):
            level = [each for name, value in level for each in self._visit(name, value)]

    def _visit(self, name: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, torch.Tensor):
            if id(value) in self._wanted and is_trainable_leaf(value):
                self.found.setdefault(id(value), name)
            return []
        if isinstance(value, _OPAQUE) or id(value) in self._seen or len(self._seen) > _MOST_THINGS:
            return []
        self._seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            return [(f"{name}.{key}", parameter) for key, parameter in value.named_parameters()]
        if isinstance(value, dict):
            return [(f"{name}[{key!r}]", each) for key, each in list(value.items()) if isinstance(key, (str, int))]
        if isinstance(value, (list, tuple)):
            return [(f"{name}[{i}]", each) for i, each in enumerate(value)]
        own = getattr(value, "__dict__", None)
        if not isinstance(own, dict):
            return []
        return [(f"{name}.{key}", each) for key, each in list(own.items())]
