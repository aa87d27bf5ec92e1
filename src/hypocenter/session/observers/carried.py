"""The state that a step begins from is the one that the step before it ended with. For HC231.

A recurrent model keeps its state in attributes of modules, and goes on from it in the next step: what is there when the
first forward of a step begins is the tensor that was there when the last update was over (the same memory, not written
to since). Where a model was called without gradients or in evaluation in between, and what is there instead is what
those calls have left, training goes on from the state of an evaluation. The micro-batch is done again with what the
last step had left: a value that nothing reads leaves the loss as it is.

Only what has a dimension of as many as the batch has samples is such a state. A program that begins so from the first
step on, as one that warms its state up before each, means it; so does one that sets it to zeros or puts it back.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.config import Config
from hypocenter.detect.law_rows import CARRIED
from hypocenter.nouns import replace
from hypocenter.relations.subject import Subject
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.other_values import copied, losses_that_differ, with_values
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.left import Left, is_left, left_in
from hypocenter.tap.own_frame import RAISED
from hypocenter.tap.source import source_of, user_frame
from hypocenter.tap.tree import flatten
from hypocenter.tap.weakly import Ref

_LEARNED = 4  # updates after which it is known what a model carries
_NEW = 16  # updates after that of a new model, in which what is called is looked at
_USUAL = 3  # steps that began with what the one before had left
_PLACES, _PARTS = 8, 16  # of one model, and tensors of one state
_ELEMENTS = 1 << 20  # of a state
_LOOK_S = 5.0
_OF_MODULES = frozenset(vars(nn.Module()))


@dataclass(slots=True, kw_only=True)
class _Place:
    """An attribute that holds a state.

    Attributes:
        kept: copies of what it held when the last update was over; None: it held no state.
        left: where that lies.
        evaluated: where what the last evaluation has left lies.
        n_usual: steps that began with what the one before had left.
        is_meant: it began otherwise before that was known.
    """

    owner: Ref[nn.Module]
    key: str
    kept: Any = None
    left: list[Left] = field(default_factory=list[Left])
    evaluated: list[Left] = field(default_factory=list[Left])
    n_usual: int = 0
    is_meant: bool = False

    def value(self) -> Any:
        """What is there now: a tensor, or a list or tuple of tensors; None: no state."""
        owner = self.owner()
        if owner is None:
            return None
        value = owner._buffers[self.key] if self.key in owner._buffers else vars(owner).get(self.key)
        return value if _tensors(value) else None


@dataclass(slots=True, kw_only=True)
class _Model:
    """What is called from outside of any module.

    Attributes:
        n_rows: in what it was given last in training.
        n_evaluations: calls without gradients or in evaluation, since that in training.
        first: the line that made the first of them.
        is_next: its next call in training is the first of a step.
        n_updates: since it is known.
        is_over: it carries nothing.
    """

    module: Ref[nn.Module]
    stop: Callable[[], None]
    places: list[_Place] = field(default_factory=list[_Place])
    n_rows: int = 0
    n_evaluations: int = 0
    first: tuple[CodeType, int] | None = None
    is_next: bool = False
    n_updates: int = 0
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubt:
    """A step that begins from what an evaluation has left: copies of that, and of what the step before had left."""

    place: _Place
    now: Any
    then: Any
    first: tuple[CodeType, int] | None


class Carried(Observer):
    """Writes a row for the first state that a step has from an evaluation."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether replays are allowed: without one nothing can be said."""
        return config.replay

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._models: dict[int, _Model] = {}
        self._doubts: list[_Doubt] = []
        self._n_updates = self._until = 0
        self._is_over = False

    def attach(self) -> Callable[[], None]:
        """Return the undo, which ends the listening."""
        return self._let_go

    def _let_go(self) -> None:
        for each in self._models.values():
            each.stop()
        self._models.clear()
        if self._begin in self.context.beginning:
            self.context.beginning.remove(self._begin)

    def on_root(self, model: Any) -> None:
        """Listen to calls, to learn what a new model carries."""
        self._until = self._n_updates + _NEW
        if not self._is_over and self._begin not in self.context.beginning:
            self.context.beginning.append(self._begin)

    def at_rest(self) -> Iterable[str]:
        """Most models carry nothing."""
        return () if self._begin in self.context.beginning else ("before_update", "after_update")

    def _begin(self, module: nn.Module, args: Any) -> None:
        """Hear that a model is called from outside."""
        try:
            model = self._models.get(id(module))
            if model is None or model.module() is not module:
                if self._n_updates >= self._until or not any(p.requires_grad for p in module.parameters()):
                    return
                stop = self.context.after_calls.add(module, self._ended)
                model = self._models[id(module)] = _Model(module=Ref(module), stop=stop)
            if model.is_over:
                return
            if _is_training(module):
                self._begin_training(model, args)
            else:
                if not model.n_evaluations:
                    frame = user_frame(sys._getframe(1))
                    model.first = None if frame is None else (frame.f_code, frame.f_lineno)
                model.n_evaluations += 1
        except Exception:  # this is in the program's call
            self._is_over = True
            self._let_go()

    def _begin_training(self, model: _Model, args: Any) -> None:
        given = next((each for each in args if isinstance(each, Tensor) and each.dim()), None)
        model.n_rows = 0 if given is None else given.shape[0]
        for place in model.places if model.is_next else ():
            if (value := place.value()) is None:
                continue
            now = _tensors(value)
            if _lie_in(now, place.left):
                place.n_usual += 1
            elif model.n_evaluations and _lie_in(now, place.evaluated):
                if place.n_usual < _USUAL or place.is_meant:
                    place.is_meant = True
                elif place.kept is not None and _shapes(place.kept) == _shapes(value):
                    doubt = _Doubt(place=place, now=copied(value), then=place.kept, first=model.first)
                    self._doubts.append(doubt)
        model.is_next, model.n_evaluations = False, 0

    def _ended(self, module: Any, args: Any, output: Any) -> None:
        """Hear that a model, or a part of one, has returned."""
        model = self._models.get(id(module))
        if output is not RAISED and model is not None and model.n_evaluations:
            for place in model.places:
                place.evaluated = left_in(_tensors(place.value()))

    def before_update(self, update: Update) -> None:
        """Find out whether it matters what a step began from."""
        doubts, self._doubts = self._doubts, []
        is_healthy = bool(update.microbatches) and not update.skipped and update.check.is_finite
        if not doubts or not is_healthy or self.context.rank()[0] != 0 or self.context.replayer.needs_all():
            return
        with contextlib.suppress(Exception), self.context.audits.spending():  # the program's own code runs here
            self._look(update, doubts)

    def _look(self, update: Update, doubts: list[_Doubt]) -> None:
        context = self.context
        if why_no_room(list(update.parameters)):
            return
        subject = Subject(context.replayer, update.microbatches[0], context.names.module_name, limit_s=_LOOK_S)
        now = {(owner, each.place.key): each.now for each in doubts if (owner := each.place.owner()) is not None}
        usual = subject.run(beside=with_values(now))
        limit = subject.tolerance(usual)
        if losses_that_differ(subject, usual, now, limit) is not None:
            return  # no loss comes twice
        for each in doubts:
            if (owner := each.place.owner()) is None:
                continue
            then = {**now, (owner, each.place.key): each.then}
            if (both := losses_that_differ(subject, usual, then, limit)) is None:
                each.place.is_meant = True  # nothing reads it
                continue
            site = ".".join(filter(None, (context.names.module_name(owner) or "", each.place.key)))
            order, n = context.clock.next_order(), float(each.place.n_usual)
            row = number_row(site, CARRIED, update.step, order, n, module=type(owner).__name__)
            source = each.first and source_of(each.first[0].co_filename, each.first[1], each.first[0].co_name)
            self.rows.append(replace(row, source=source, names=(f"{both[0]:.6g}", f"{both[1]:.6g}")))
            self._is_over = True
            self._let_go()
            return

    def after_update(self, update: Update) -> None:
        """Note what the step has left."""
        if self._begin not in self.context.beginning:
            return
        self._n_updates += 1
        self._models = {key: each for key, each in self._models.items() if each.module() is not None}
        active = [(each, m) for each in self._models.values() if not each.is_over and (m := each.module()) is not None]
        for model, module in active:
            if any(id(p) in update.ids for p in module.parameters()):
                self._note(model, module)
            if not model.places and (model.n_updates >= _LEARNED or self._n_updates > self._until):
                model.is_over = True
                model.stop()
        if self._n_updates > self._until and all(each.is_over for each in self._models.values()):
            self.context.beginning.remove(self._begin)

    def _note(self, model: _Model, module: nn.Module) -> None:
        model.n_updates += 1
        model.is_next = True
        if model.n_updates < _LEARNED:
            self._find(model, module)
        elif model.n_updates == _LEARNED:
            model.places = [place for place in model.places if place.n_usual]
        for place in model.places:
            value = place.value()
            place.left, place.kept = left_in(_tensors(value)), copied(value)

    def _find(self, model: _Model, module: nn.Module) -> None:
        known = {(id(place.owner()), place.key) for place in model.places}
        for part in module.modules():
            for key, value in _states(part, model.n_rows):
                if (id(part), key) not in known and len(model.places) < _PLACES and value is not None:
                    model.places.append(_Place(owner=Ref(part), key=key))


def _is_training(module: nn.Module) -> bool:
    return module.training and torch.is_grad_enabled()


def _states(module: nn.Module, n_rows: int) -> Iterator[tuple[str, Any]]:
    """Yield attributes and buffers of a module that have a value for each of so many samples."""
    own = [(key, value) for key, value in list(vars(module).items()) if key not in _OF_MODULES]
    for key, value in (*own, *module._buffers.items()):
        if n_rows > 1 and any(n_rows in each.shape for each in _tensors(value)):
            yield key, value


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of a state; [] if it is none."""
    if type(value) is Tensor:
        found = [value]
    elif type(value) in (tuple, list) and len(value) <= _PARTS:
        found = [tensor for _, tensor in flatten(value)]
    else:
        return []
    is_plain = all(type(t) is Tensor and t.layout is torch.strided and t.is_floating_point() for t in found)
    return found if is_plain and len(found) <= _PARTS and sum(t.numel() for t in found) <= _ELEMENTS else []


def _lie_in(tensors: list[Tensor], marks: list[Left]) -> bool:
    """Return whether these are what was marked, and have not been written to."""
    if not tensors or len(tensors) != len(marks):
        return False
    return all(map(is_left, tensors, marks))


def _shapes(value: Any) -> list[tuple[Any, ...]]:
    return [(each.shape, each.dtype, each.device) for each in _tensors(value)]
