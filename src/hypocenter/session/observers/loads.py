"""What `load_state_dict(strict=False)` has left out. For HC255."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from hypocenter.detect.law_rows import NOT_LOADED
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.source import source_of, user_frame

_MOST = 8  # loads that are told of
_LEAST_PARTS = 2  # of a name: `norm.weight` alone is found in many places


class Loads(Observer):
    """Writes a row for a load that put values nowhere whose names and shapes are those of missing ones."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._found: list[tuple[nn.Module, Sequence[tuple[str, str]], Any]] = []

    def attach(self) -> Callable[[], None]:
        """Hear of the loads of modules."""
        return hear(nn.Module, "load_state_dict", self._begin, like=_load_state_dict)

    def _begin(self, module: nn.Module, given: Any, strict: bool, assign: bool) -> Callable[[Any], None] | None:
        if strict or len(self._found) >= _MOST or not isinstance(given, Mapping):
            return None
        frame = user_frame(sys._getframe(1))
        place = None if frame is None else (frame.f_code, frame.f_lineno)

        def end(result: Any) -> None:
            with contextlib.suppress(Exception):  # this is the user's call, and what it was given may be anything
                if result is not RAISED and (pairs := _left_out(module, given, result)):
                    self._found.append((module, pairs, place))

        return end

    def before_update(self, update: Update) -> None:
        """Tell of those that belong to what is trained now."""
        found, self._found = self._found, []
        for module, pairs, place in found:
            mine = [pair for pair in pairs if self._is_trained(module, pair[0], update)]
            if not mine:
                continue
            order = self.context.clock.next_order()
            source = None if place is None else source_of(place[0].co_filename, place[1], place[0].co_name)
            row = number_row(mine[0][0], NOT_LOADED, update.step, order, float(len(mine)), module=mine[0][1])
            self.rows.append(replace(row, source=source))

    def _is_trained(self, module: nn.Module, name: str, update: Update) -> bool:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        return value is not None and any(value is each for each in update.parameters)


def _left_out(module: nn.Module, given: Mapping[str, Any], result: Any) -> list[tuple[str, str]]:
    """As `renamed`, of one load. Of the module's own tensors: `state_dict` may be a collective."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return renamed(
        {name: tuple(own[name].shape) for name in result.missing_keys if name in own},
        {name: tuple(given[name].shape) for name in result.unexpected_keys if hasattr(given[name], "shape")},
    )


def renamed(missing: Mapping[str, tuple[int, ...]], unexpected: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    """(missing, unexpected) whose names end alike and whose shapes are equal.

    Args:
        missing, unexpected: names with shapes.
    """
    by_end: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, shape in unexpected.items():
        parts = name.split(".")
        for at in range(len(parts) - _LEAST_PARTS + 1):
            by_end.setdefault((".".join(parts[at:]), shape), []).append(name)
    found: list[tuple[str, str]] = []
    for name, shape in missing.items():
        parts = name.split(".")
        for at in range(len(parts) - _LEAST_PARTS + 1):
            same = by_end.get((".".join(parts[at:]), shape), [])
            if len(same) == 1:
                found.append((name, same[0]))
                break
            if same:
                break  # nobody can tell which
    return found


def _load_state_dict(self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> None: ...
