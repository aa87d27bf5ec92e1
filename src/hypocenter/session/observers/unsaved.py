"""A run that is resumed goes on with the model that was saved, also in what no checkpoint holds. For HC255.

Whenever a model is asked for its `state_dict`, copies are kept of what is not in it: buffers that are not persistent,
and small tensors and numbers that are plain attributes of modules. Where another model of the same structure, and an
optimizer for it, are given back what was saved, both compute the same function. What differs between the two is looked
at before the first update: unless loading, the program or the forward have set it since, the micro-batch is done again
with the values of then in place of those of now. Caches and counters that nothing reads leave the loss as it is.

A number that a program gives to the model it makes may be another one on purpose: numbers count only where the model
that was saved had changed them in training.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hypocenter import own_time
from hypocenter.config import Config
from hypocenter.detect.law_rows import NOT_SAVED
from hypocenter.nouns import Source, replace
from hypocenter.relations.subject import SMALL, Subject
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.loads import like_load_state_dict
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.other_values import losses_that_differ
from hypocenter.session.observers.sampled import sample
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.gradients import to_host
from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.source import source_of, user_frame
from hypocenter.tap.weakly import Ref

_KEPT, _ELEMENTS, _FEWEST = 16, 256, 2  # matrices of a model that tell it from others, elements of each, and how many
_SAVES, _LOADS = 4, 8  # that are remembered
_AT_ONCE, _SINGLY = 1 << 18, 16  # elements of all that is kept of one model; values whose part is asked for
_FREE_S, _SHARE = 0.5, 0.002  # what copies may take: so much, or of the time of the run
_LOOK_S = 10.0  # what a look may take; there is one for each resumption
_OF_MODULES = frozenset(vars(nn.Module()))

_Place = tuple[str, str]  # path of a module, and name
_Values = Mapping[_Place, "Tensor | int | float"]


@dataclass(slots=True, kw_only=True, eq=False)
class _State:
    """What a model holds.

    Attributes:
        structure: its modules by name and class, and what a checkpoint has of them by name and shape.
        weights: samples of matrices, by name.
        beside: what no checkpoint has.
    """

    structure: tuple[Any, ...]
    weights: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    beside: dict[_Place, Tensor | int | float] = field(default_factory=dict[_Place, "Tensor | int | float"])


@dataclass(slots=True, kw_only=True, eq=False)
class _Load:
    """A model that was given the state of another, or of an earlier one."""

    module: Ref[nn.Module]
    loaded: _Values  # what it held beside that when this was over
    place: Any


class Unsaved(Observer):
    """Writes a row where a model that was loaded computes something else than the one that was saved."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether replays are allowed: without one nothing can be said."""
        return config.replay

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._saved: list[tuple[Ref[nn.Module], _State]] = []
        self._loads: list[_Load] = []
        self._resumed: list[Ref[Optimizer]] = []  # that were given a state, and have made no update since
        self._first: dict[int, tuple[Ref[nn.Module], dict[str, int | float]]] = {}  # numbers before training, by id
        self._began, self._spent_s = own_time.now(), 0.0

    def attach(self) -> Callable[[], None]:
        """Hear of models that are saved, of models that are loaded, and of optimizers that are; returns the undo."""
        undo = contextlib.ExitStack()
        undo.callback(hear(nn.Module, "state_dict", self._begin_saving))
        undo.callback(hear(nn.Module, "load_state_dict", self._begin_loading, like=like_load_state_dict))
        undo.callback(hear(Optimizer, "load_state_dict", self._begin_resuming))
        return undo.close

    def on_root(self, model: Any) -> None:
        """Note the numbers that a model begins with."""
        self._first = {key: each for key, each in self._first.items() if each[0]() is not None}
        for module in model.modules():
            if numbers := {key: v for key, v in _attributes(module) if not isinstance(v, Tensor)}:
                self._first[id(module)] = Ref(module), numbers

    def _begin_saving(self, module: nn.Module, *given: Any) -> Callable[[Any], None] | None:
        now = own_time.now()
        is_part = any(isinstance(each, dict) for each in given)  # it puts its own into the state of the whole
        if is_part or self._spent_s > max(_FREE_S, _SHARE * (now - self._began)):
            return None

        def end(result: Any) -> None:
            if result is not RAISED:
                began = own_time.now()
                with contextlib.suppress(Exception):  # this is the user's call, and modules may be anything
                    self._save(module)
                self._spent_s += own_time.now() - began

        return end

    def _save(self, module: nn.Module) -> None:
        state = _state_of(module, self._is_learned if module.training else lambda *_: False)
        others = [(ref, each) for ref, each in self._saved if ref() is not module]
        self._saved = [*others[1 - _SAVES :], (Ref(module), state)] if state.beside else others

    def _is_learned(self, module: nn.Module, key: str, value: float) -> bool:
        first = self._first.get(id(module))
        return first is not None and first[0]() is module and first[1].get(key, value) != value

    def _begin_loading(self, module: nn.Module, given: Any, strict: bool, assign: bool) -> Callable[[Any], None] | None:
        if not self._saved:
            return None
        frame = user_frame(sys._getframe(1))
        place = None if frame is None else (frame.f_code, frame.f_lineno)

        def end(result: Any) -> None:
            if result is not RAISED:
                with contextlib.suppress(Exception):  # the same
                    self._load(module, given, place)

        return end

    def _load(self, module: nn.Module, given: Mapping[str, Any], place: Any) -> None:
        self._loads = [each for each in self._loads if each.module() not in (None, module)]
        own = dict(_persistent(module))
        loaded = {id(own[name]) for name in given if name in own}
        state = _state_of(module)
        if all(id(each) in loaded for each in own.values()) and self._saved_like(module, state) is not None:
            new = _Load(module=Ref(module), loaded=state.beside, place=place)
            self._loads = [*self._loads[1 - _LOADS :], new]

    def _saved_like(self, module: nn.Module, state: _State) -> _State | None:
        """Return what was saved last of a model with these weights that is not this one; None: nothing was."""
        for ref, saved in reversed(self._saved):
            if ref() is module or saved.structure != state.structure or saved.weights.keys() != state.weights.keys():
                continue
            pairs = [(saved.weights[name], now) for name, now in state.weights.items()]
            is_alike = len(pairs) >= _FEWEST and all(_kind(a) == _kind(b) for a, b in pairs)
            if is_alike and not any(to_host([(a != b).any() for a, b in pairs])):
                return saved
        return None

    def _begin_resuming(self, optimizer: Optimizer, *given: Any) -> None:
        self._resumed = [ref for ref in self._resumed if ref() not in (None, optimizer)][1 - _LOADS :]
        self._resumed.append(Ref(optimizer))

    def at_rest(self) -> Iterable[str]:
        """Only the first update after a load is looked at."""
        return () if self._loads else ("before_update",)

    def before_update(self, update: Update) -> None:
        """Look at a model that was loaded, before its optimizer, which was given a state, changes it."""
        if not self._loads:
            return
        optimizer = self.context.framework.optimizer(update.optimizer)
        is_resumed = any(ref() is optimizer for ref in self._resumed)
        self._resumed = [ref for ref in self._resumed if ref() not in (None, optimizer)]
        trained = update.ids
        models = [(each, each.module()) for each in self._loads]
        mine = [(each, m) for each, m in models if m is not None and any(id(p) in trained for p in m.parameters())]
        self._loads = [each for each, m in models if m is not None and all(each is not other for other, _ in mine)]
        is_healthy = bool(update.microbatches) and not update.skipped and update.check.is_finite
        if is_resumed and is_healthy and self.context.rank()[0] == 0 and not self._computes_over_ranks():
            for load, module in mine:
                with contextlib.suppress(Exception), self.context.audits.spending():  # the program's own code runs here
                    self._look(update, load, module)

    def _computes_over_ranks(self) -> bool:
        groups = self.context.place().groups
        return (
            any(axis != "dp" and len(ranks) > 1 for axis, ranks in groups.items()) or self.context.replayer.needs_all()
        )

    def _look(self, update: Update, load: _Load, module: nn.Module) -> None:
        """Write a row if what was saved makes another loss of the last micro-batch."""
        now = _state_of(module)
        saved = self._saved_like(module, now)
        then = {} if saved is None else _other(saved.beside, load.loaded, now.beside)
        if not then or why_no_room(list(module.parameters())):
            return
        context, parts = self.context, dict(module.named_modules())
        subject = Subject(context.replayer, update.microbatches[-1], context.names.module_name, limit_s=_LOOK_S)
        usual = subject.run()
        limit = subject.tolerance(usual)

        def moved(places: Iterable[_Place]) -> tuple[float, float] | None:
            values = {(parts[path], key): then[path, key] for path, key in places}
            return losses_that_differ(subject, usual, values, limit)

        both = moved(then)
        if both is None or moved(()) is not None:  # nothing reads it, or no loss comes twice
            return
        guilty = [place for place in list(then)[:_SINGLY] if moved([place]) is not None] or [*then]
        path, key = guilty[0]
        name = context.names.module_name(parts[path])
        order = context.clock.next_order()
        kind = "buffer" if key in parts[path]._buffers else "attribute"
        site = ".".join(filter(None, (path if name is None else name, key)))
        row = number_row(site, NOT_SAVED, update.step, order, float(len(guilty)), module=kind)
        told = (*_in_words(then[guilty[0]], now.beside[guilty[0]]), f"{both[0]:.6g}", f"{both[1]:.6g}")
        self.rows.append(replace(row, names=told, source=_source(load.place)))


def _state_of(module: nn.Module, is_wanted: Callable[[nn.Module, str, float], bool] = lambda *_: True) -> _State:
    """Return copies of what a model holds.

    Args:
        is_wanted: of a plain attribute that is a number.
    """
    structure: list[Any] = []
    beside: dict[_Place, Tensor | int | float] = {}
    n_elements = 0
    for path, each in module.named_modules():
        structure.append((path, type(each)))
        for key, value in _beside(each):
            if not isinstance(value, Tensor):
                if is_wanted(each, key, value):
                    beside[path, key] = value
            elif (n_elements := n_elements + value.numel()) <= _AT_ONCE:
                beside[path, key] = value.detach().clone()
    own = dict(_persistent(module))
    structure += [(name, tuple(value.shape)) for name, value in own.items()]
    able = [name for name, value in own.items() if beside and value.dim() > 1]  # else nobody asks for them
    some = able[:: -(-len(able) // _KEPT) or 1]
    weights = {name: v.clone() for name in some if (v := sample(own[name].detach(), _ELEMENTS)) is not None}
    return _State(structure=tuple(structure), weights=weights, beside=beside)


def _persistent(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what a checkpoint has of a model, shared tensors under each name."""
    for path, each in module.named_modules(remove_duplicate=False):
        tables = (each._parameters.items(), each._buffers.items())
        for key, value in (pair for table in tables for pair in table):
            if value is not None and key not in each._non_persistent_buffers_set:
                yield f"{path}.{key}" if path else key, value


def _beside(module: nn.Module) -> Iterator[tuple[str, Tensor | int | float]]:
    """Yield what a checkpoint does not have of one module that is none of torch's own: it may be set by the program."""
    if type(module).__module__.partition(".")[0] == "torch":
        return
    for key in module._non_persistent_buffers_set:
        value = module._buffers.get(key)
        if value is not None and _is_small(value):
            yield key, value
    yield from _attributes(module)


def _attributes(module: nn.Module) -> Iterator[tuple[str, Tensor | int | float]]:
    for key, value in list(vars(module).items()):
        if key not in _OF_MODULES and (type(value) in (int, float) or (type(value) is Tensor and _is_small(value))):
            yield key, value


def _is_small(value: Tensor) -> bool:
    is_plain = value.layout is torch.strided and value.device.type != "meta" and not value.requires_grad
    return is_plain and 0 < value.numel() <= SMALL


def _other(then: _Values, loaded: _Values, now: _Values) -> dict[_Place, Tensor | int | float]:
    """Return what was something else then, of what nothing has set since the load."""
    numbers: dict[_Place, bool] = {}
    pairs: list[tuple[_Place, Tensor, Tensor, Tensor]] = []
    for place, was in then.items():
        came, here = loaded.get(place), now.get(place)
        if isinstance(was, Tensor):
            if isinstance(came, Tensor) and isinstance(here, Tensor) and _kind(came) == _kind(here) == _kind(was):
                pairs.append((place, was, came, here))
        elif type(was) is type(came) is type(here):
            numbers[place] = bool(came == here != was)
    host = to_host([n for _, was, came, here in pairs for n in ((came != here).any(), (was != here).any())])
    is_set, is_other = host[::2], host[1::2]
    tensors = {place: not a and bool(b) for (place, *_), a, b in zip(pairs, is_set, is_other, strict=True)}
    return {place: was for place, was in then.items() if {**numbers, **tensors}.get(place, False)}


def _kind(value: Tensor) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.device


def _in_words(then: Tensor | float, now: Tensor | float) -> tuple[str, str]:
    """Return both values as texts: of tensors that of the first element that differs."""
    a, b = (torch.as_tensor(each, device="cpu").reshape(-1) for each in (then, now))
    at = int((a != b).nonzero()[0]) if a.numel() > 1 else 0
    return f"{a[at].item():.6g}", f"{b[at].item():.6g}"


def _source(place: Any) -> Source | None:
    return None if place is None else source_of(place[0].co_filename, place[1], place[0].co_name)
