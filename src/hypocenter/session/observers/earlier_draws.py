"""Whether steps draw again what earlier ones drew, as the program has seeded in between. For HC239."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import nn

from hypocenter.session.observer import Update
from hypocenter.tap.own_frame import hear
from hypocenter.tap.source import user_frame
from hypocenter.tap.state import RngState
from hypocenter.tap.weakly import Ref

IN_A_ROW = 3  # steps that each began where an earlier one did
_MOST, _OPTIMIZERS, _LOADS = 1 << 14, 16, 8  # states of a generator that are known; and what they are kept for


@dataclass(frozen=True, slots=True)
class Again:
    """Steps in a row, of which this is the last, that began where those so many steps before had begun."""

    generator: str
    n: int
    ago: int
    place: tuple[CodeType, int]  # where the program has seeded


@dataclass(slots=True)
class _Course:
    """Where a generator stood at the beginning of each step of one optimizer."""

    steps: dict[int, int] = field(default_factory=dict[int, int])  # the last step that began there
    last: int | None = None
    n: int = 0
    ago: int = 0
    place: tuple[CodeType, int] | None = None

    def goes_on(self, state: int, step: int, place: tuple[CodeType, int] | None) -> bool:
        """Note a beginning; return whether as many in a row as tell are those of steps before.

        What is reached again without a seed may have been put back on purpose; a seed for each step too.
        """
        earlier = self.steps.pop(state, None)
        is_still, self.last = state == self.last, state
        self.steps[state] = step
        if len(self.steps) > _MOST:
            del self.steps[next(iter(self.steps))]
        if earlier is None or is_still:
            self.n = 0
        elif self.n and place is None and step - earlier == self.ago:
            self.n += 1
        else:
            self.n, self.ago, self.place = int(place is not None), step - earlier, place
        return self.n == IN_A_ROW


class EarlierDraws:
    """Knows the states of torch's generators from which the steps of each optimizer have begun: a hash of each."""

    def __init__(self) -> None:
        self._courses: dict[int, tuple[weakref.ref[Any], dict[str, _Course]]] = {}  # by id of an optimizer
        self._seeded: tuple[CodeType, int] | None = None
        self._loaded: list[weakref.ref[Any]] = []  # models and optimizers

    def attach(self) -> Callable[[], None]:
        """Hear of seeds, and of what is loaded: who goes back to old weights may draw old numbers. Returns the undo."""
        undo = ExitStack()
        undo.callback(hear(torch.random, "manual_seed", self._seed))
        undo.callback(hear(nn.Module, "load_state_dict", self._load))
        undo.callback(hear(torch.optim.Optimizer, "load_state_dict", self._load))
        return undo.close

    def _seed(self, *_: Any) -> None:
        frame = user_frame(sys._getframe(1))
        if frame is not None:
            self._seeded = frame.f_code, frame.f_lineno

    def _load(self, target: Any, *_: Any) -> None:
        self._loaded = [*self._loaded[1 - _LOADS :], Ref(target)]

    def look(self, update: Update, begun: RngState) -> Again | None:
        """Note from where this step's forward began; return what has begun again, if it has."""
        place, self._seeded = self._seeded, None
        loaded, self._loaded = [each() for each in self._loaded], []
        known = self._courses.get(id(update.optimizer))
        if known is None or known[0]() is not update.optimizer or _is_loaded(loaded, update):
            if update.optimizer is None or (known is None and len(self._courses) >= _OPTIMIZERS):
                return None
            known = self._courses[id(update.optimizer)] = Ref(update.optimizer), {}
        found: Again | None = None
        for name, state in _states(begun):
            course = known[1].setdefault(name, _Course())
            if course.goes_on(state, update.step, place) and course.place is not None:
                found = Again(name, course.n, course.ago, course.place)
        return found


def _is_loaded(loaded: list[Any], update: Update) -> bool:
    return any(
        not isinstance(each, nn.Module) or not update.ids.isdisjoint(map(id, each.parameters()))
        for each in loaded if each is not None
    )  # fmt: skip


def _states(begun: RngState) -> Iterator[tuple[str, int]]:
    """Yield each generator of torch and a hash of its state, which lies on the host."""
    yield "cpu", hash(begun.cpu.numpy().tobytes())
    if begun.device is not None and begun.device_type is not None:
        yield begun.device_type, hash(begun.device.numpy().tobytes())
