"""Loads that leave something out, that are written over, or that bring nothing back. For HC255."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.detect.law_rows import NOT_BROUGHT_BACK, NOT_LOADED, WRITTEN_OVER
from hypocenter.nouns import Source
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import sample
from hypocenter.tap.gradients import to_host
from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.source import source_of, user_frame
from hypocenter.tap.weakly import Ref

_MOST = 8  # loads that are told of
_KEPT, _ELEMENTS, _FEWEST = 16, 256, 2  # parameters of a load, elements of each, and parameters that tell
_UNLIKE = 0.3  # cosine: nothing of what was loaded is left
_LEAST_PARTS = 2  # of a name: `norm.weight` alone is found in many places


@dataclass(slots=True, kw_only=True, eq=False)
class _Loaded:
    """What a load has left, of some parameters of more than one dimension."""

    values: Sequence[tuple[Ref[Tensor], Tensor]]
    place: Any


@dataclass(slots=True, kw_only=True, eq=False)
class _Saved:
    """What `state_dict` gave, and samples of what it held then."""

    given: weakref.ref[OrderedDict[str, Any]]
    values: Mapping[str, Tensor]


class Loads(Observer):
    """Writes a row for a load whose unexpected tensors have the name endings and shapes of missing ones.

    And one where most of what was loaded has nothing to do any more with what the first update finds; and one where
    what is loaded are the parameters themselves, which have moved since `state_dict` gave them.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._loaded: list[_Loaded] = []
        self._saved: list[_Saved] = []
        self._found: list[tuple[nn.Module, Sequence[tuple[str, str]], Any]] = []

    def attach(self) -> Callable[[], None]:
        """Hear of `state_dict` and `load_state_dict` of all modules; returns the undo."""
        undo = contextlib.ExitStack()
        undo.callback(hear(nn.Module, "load_state_dict", self._begin, like=like_load_state_dict))
        undo.callback(hear(nn.Module, "state_dict", self._begin_saving))
        return undo.close

    def _begin_saving(self, module: nn.Module, *given: Any) -> Callable[[Any], None] | None:
        if any(isinstance(each, dict) for each in given):
            return None  # a part puts its own into the state of the whole

        def end(result: Any) -> None:
            if isinstance(result, OrderedDict):
                with contextlib.suppress(Exception):
                    self._remember(result)

        return end

    def _remember(self, state: OrderedDict[str, Any]) -> None:
        able = [name for name, value in state.items() if isinstance(value, Tensor) and value.dim() > 1]
        some = able[:: -(-len(able) // _KEPT) or 1]
        values = {name: v.clone() for name in some if (v := sample(state[name], _ELEMENTS)) is not None}
        alive = [each for each in self._saved if each.given() is not None]
        self._saved = [*alive[1 - _MOST :], _Saved(given=Ref(state), values=values)]

    def _begin(self, module: nn.Module, given: Any, strict: bool, assign: bool) -> Callable[[Any], None] | None:
        if not isinstance(given, Mapping):
            return None
        frame = user_frame(sys._getframe(1))
        place = None if frame is None else (frame.f_code, frame.f_lineno)
        with contextlib.suppress(Exception):
            self._look_for_its_own(module, given, place)

        def end(result: Any) -> None:
            if result is RAISED:
                return
            with contextlib.suppress(Exception):  # this is the user's call, and what it was given may be anything
                self._keep(module, place)
                if not strict and len(self._found) < _MOST and (pairs := _left_out(module, given, result)):
                    self._found.append((module, pairs, place))

        return end

    def before_update(self, update: Update) -> None:
        """Write rows of the loads that concern what this update trains."""
        if self._loaded:
            self._look_for_written_over(update)
        found, self._found = self._found, []
        for module, pairs, place in found:
            mine = [pair for pair in pairs if self._is_trained(module, pair[0], update)]
            if not mine:
                continue
            order = self.context.clock.next_order()
            row = number_row(mine[0][0], NOT_LOADED, update.step, order, float(len(mine)), module=mine[0][1])
            self.rows.append(replace(row, source=_source(place)))

    def _look_for_its_own(self, module: nn.Module, given: Mapping[str, Any], place: Any) -> None:
        """Write a row if a load would put back what was saved, and cannot, as that has moved with the parameters."""
        saved = next((each for each in self._saved if each.given() is given), None)
        if saved is None:
            return
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        mine = [name for name in saved.values if name in own and _is_one(given.get(name), own[name])]
        now = {name: sample(own[name].detach(), _ELEMENTS) for name in mine}
        moved = [name for name, v in now.items() if v is not None and not torch.equal(v, saved.values[name])]
        if 2 * len(moved) <= len(saved.values):
            return
        self._saved.remove(saved)
        step, order = self.context.clock.step, self.context.clock.next_order()
        row = number_row(self.context.label(own[moved[0]]), NOT_BROUGHT_BACK, step, order, len(moved), call=len(mine))
        self.rows.append(replace(row, source=_source(place)))

    def _keep(self, module: nn.Module, place: Any) -> None:
        new = set(map(id, module.parameters()))  # what was loaded before into these is meant to be written over
        for each in self._loaded:
            each.values = [(ref, v) for ref, v in each.values if (p := ref()) is not None and id(p) not in new]
        self._loaded = [each for each in self._loaded if each.values]
        able: list[Tensor] = [p for p in module.parameters() if p.dim() > 1]
        some = able[:: -(-len(able) // _KEPT) or 1]
        values = [(Ref(p), v.detach().clone()) for p in some if (v := sample(p, _ELEMENTS)) is not None]
        if len(values) >= _FEWEST and len(self._loaded) < _MOST:
            self._loaded.append(_Loaded(values=values, place=place))

    def _look_for_written_over(self, update: Update) -> None:
        """Write rows of loads that were written over before this update, the first to change their parameters."""
        trained = update.ids
        mine = [each for each in self._loaded if any(id(ref()) in trained for ref, _ in each.values)]
        self._loaded = [each for each in self._loaded if each not in mine]
        for each in mine:
            pairs = [
                (p, before, now) for ref, before in each.values
                if (p := ref()) is not None and id(p) in trained and (now := sample(p.detach(), _ELEMENTS)) is not None
                and now.shape == before.shape and now.dtype == before.dtype and now.device == before.device
            ]  # fmt: skip
            if len(pairs) < _FEWEST:
                continue
            host = to_host([_likeness(before.float(), now.float()) for _, before, now in pairs])
            lost = [p for (p, _, _), likeness in zip(pairs, host, strict=True) if abs(likeness) < _UNLIKE]
            if 2 * len(lost) > len(pairs):
                label, order = self.context.label(lost[0]), self.context.clock.next_order()
                row = number_row(label, WRITTEN_OVER, update.step, order, len(lost), call=len(pairs))
                self.rows.append(replace(row, source=_source(each.place)))

    def _is_trained(self, module: nn.Module, name: str, update: Update) -> bool:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        return value is not None and any(value is each for each in update.parameters)


def _is_one(value: Any, own: Tensor) -> bool:
    """Return whether both tensors lie in the same memory."""
    is_alike = isinstance(value, Tensor) and value.shape == own.shape and value.layout is own.layout is torch.strided
    return is_alike and value.data_ptr() == own.data_ptr()


def _source(place: Any) -> Source | None:
    return None if place is None else source_of(place[0].co_filename, place[1], place[0].co_name)


def _likeness(before: Tensor, now: Tensor) -> Tensor:
    """Return the cosine of the angle between what was loaded and what is there; 1 where all is 0."""
    size = before.norm() * now.norm()
    return torch.where(size > 0, (before * now).sum() / size, torch.ones_like(size))


def _left_out(module: nn.Module, given: Mapping[str, Any], result: Any) -> list[tuple[str, str]]:
    """Return what a load left out, as `renamed` does, of the module's own tensors: `state_dict` may communicate."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return renamed(
        {name: tuple(own[name].shape) for name in result.missing_keys if name in own},
        {name: tuple(given[name].shape) for name in result.unexpected_keys if hasattr(given[name], "shape")},
    )


def renamed(missing: Mapping[str, tuple[int, ...]], unexpected: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    """Return pairs (missing, unexpected) of names that end alike and have equal shapes.

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


def like_load_state_dict(self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> None:
    """Take what `load_state_dict` of torch takes."""
