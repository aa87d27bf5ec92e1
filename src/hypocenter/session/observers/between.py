"""The law "nothing between": what an update left is what the next one starts from. For HC231.

After an update a sample of parameters and of the optimizer's state is kept, and compared with what is there before the
next update of that optimizer. Some parameters in turn are looked at, at updates that lie further and further apart, and
all of them at steps of `--audit`. Where nobody waits for a device, a few elements of PEEKED parameters in turn are
looked at every time; all elements of a small model, for one that has another exponent or sign and nothing else: that is
a bit that has flipped, and no program's doing.

A program may write to its parameters on purpose, and then it mostly has the habit: it clips them after each update, or
averages them every few. So a change counts only where there was none between at least STAYS pairs of updates before, or
is none between FOLLOWED pairs after it, and only once for each tensor.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter import schedule
from hypocenter.detect.law_rows import BALANCED, BETWEEN, BIT, CHANGED, GONE, OPTION, SITE, STATE
from hypocenter.nouns import Reading, replace
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.framework import SCHEDULED, WHOLE, Framework, Peek, stride_of
from hypocenter.session.observers.columns import VALUE, Block, blocks
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.slack import slack_of
from hypocenter.tap.source import source_of
from hypocenter.tap.weakly import Ref

ELEMENTS = 256  # of a tensor
PARAMETERS = 32  # in one step that is not audited
PEEKED = 32  # parameters, in turn, of which a few elements are looked at each time
MOST_PEEKED = 64  # parameters of a small model, all of which are
LEAST_JUMP = 4  # binary orders of magnitude: who doubles a weight, or doubles it again, may mean it
STAYS, FOLLOWED = 2, 4  # pairs of updates
LONG = 8  # updates

_Key = tuple[int, str]  # id of a parameter, and "value" or the name of its state


@dataclass(slots=True)
class _Track:
    """What is known of one tensor."""

    n_stayed: int = 0  # pairs of updates in a row
    event: Reading | None = None  # a change that may be a habit
    is_over: bool = False  # it was told, or is a habit


@dataclass(slots=True)
class _Kept:
    """What an optimizer's update left."""

    optimizer: weakref.ref[Any]
    blocks: Sequence[Block] = ()  # their parameters are weak references
    moved: set[int] = field(default_factory=set)  # ids of parameters that another optimizer has updated since
    first: int = 0  # of the parameters of that update of which there is a peek
    window: int = 0  # how many there are in a peek
    peek: Peek | None = None
    n_peeks: int = 0  # in a row that found nothing
    moves: frozenset[int] = frozenset()  # ids of all parameters of that update
    n_updates: int = 0
    options: list[dict[str, float]] = field(default_factory=list)  # of its first groups
    track: _Track = field(default_factory=_Track)  # of the options
    is_scheduled: bool = False  # a schedule has stepped since


class Between(Observer[Observed]):
    """Writes rows of what has changed between two updates."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._audits = context.audits
        self._kept: dict[int, _Kept] = {}  # by id of the optimizer: not every one has a hash
        self._tracks: dict[_Key, _Track] = {}
        self._may_follow = False  # some track may have an event
        self._long_held: set[int] = set()  # ids of the first parameters of optimizers with state, after LONG updates

    def attach(self) -> Callable[[], None]:
        """Listen to schedules, some of which leave no mark at their optimizer; returns the undo."""
        return self.context.framework.schedules(self._scheduled, self.context.warn)

    def _scheduled(self, scheduler: Any, optimizer: Any) -> None:
        inner = None if optimizer is None else self.context.framework.optimizer(optimizer)
        if (kept := self._kept.get(id(inner))) is not None and kept.optimizer() is inner:
            kept.is_scheduled = True

    def after_update(self, update: Update) -> None:
        """Keep what it left."""
        moved = update.ids
        for other in self._kept.values():  # one optimizer may move what another one has left
            if other.blocks:
                other.moved |= moved
            if other.peek is not None and not moved.isdisjoint(other.moves):
                other.peek = None
        optimizer = self.context.framework.optimizer(update.optimizer)
        if optimizer is None:
            return
        kept = self._of(optimizer)
        kept.n_updates += 1
        if kept.n_updates == LONG and self._has_state(optimizer, update):
            self._long_held.add(id(update.parameters[0]))
        kept.options, kept.is_scheduled = self.context.framework.settings(optimizer), False
        if not kept.window:
            n = len(update.parameters)
            is_small = n <= MOST_PEEKED and sum(math.prod(p.shape) for p in update.parameters) <= WHOLE
            kept.window = max(PEEKED, n) if is_small else PEEKED
        kept.first = kept.n_updates % max(1, -(-len(update.parameters) // kept.window)) * kept.window
        peeked = update.parameters[kept.first : kept.first + kept.window]
        kept.peek, kept.moves = self.context.framework.peek(peeked), moved
        kept.blocks, kept.moved = (), set()
        chosen = self._chosen(optimizer, kept.n_updates, update.step + 1)
        if not chosen:
            return
        with self._audits.spending(calls_program=False):
            found = self._blocks(optimizer, chosen)
            kept.blocks = [replace(block, parameters=list(map(Ref, block.parameters))) for block in found]

    def _look_again(self, kept: _Kept, update: Update) -> list[tuple[_Key, Any, tuple[int, int]]]:
        """What has changed of the few elements of each parameter, but of those that are looked at anyway."""
        before, kept.peek = kept.peek, None
        framework = self.context.framework
        parameters = update.parameters[kept.first : kept.first + kept.window]
        now = framework.peek(parameters) if before is not None else None
        if before is None or now is None or now.places != before.places:
            return []
        if framework.are_same(before.values, now.values):
            kept.n_peeks += 1
            return []
        n_before, kept.n_peeks = kept.n_peeks, 0
        held = [(parameters[at], slice(*bounds)) for at, *bounds in now.places]
        few = [slice(at.start, at.stop, stride_of(at.stop - at.start)) for _, at in held]
        trios = [
            (before.values[at], now.values[at], _slack(framework, p)) for (p, _), at in zip(held, few, strict=True)
        ]
        for parameter, at in held:
            if jump := jumped(framework.on_host(before.values[at]), framework.on_host(now.values[at])):
                self.rows.append(self._of_bit(parameter, update.step, jump))
        found: list[tuple[_Key, Any, tuple[int, int]]] = []
        others = {id(ref()) for block in kept.blocks for ref in block.parameters} - kept.moved
        for (parameter, _), counts in zip(held, framework.n_changed(trios), strict=True):
            key = id(parameter), VALUE
            self._tracks.setdefault(key, _Track()).n_stayed += n_before
            if id(parameter) not in others:
                found.append((key, parameter, counts))
        return found

    def _of_bit(self, parameter: Any, step: int, jump: str) -> Reading:
        order, shape = self.context.clock.next_order(), tuple(parameter.shape)
        n = math.prod(shape)
        row = count_row(self.context.label(parameter), CHANGED, step, order, (n, 1), shape=shape, module=BIT)
        return replace(row, op=jump)

    def _of(self, optimizer: Any) -> _Kept:
        kept = self._kept.get(id(optimizer))
        if kept is None or kept.optimizer() is not optimizer:
            kept = self._kept[id(optimizer)] = _Kept(Ref(optimizer))
        return kept

    def _chosen(self, optimizer: Any, n_updates: int, step: int) -> Sequence[Any]:
        """What is looked at before the update of the next step."""
        followed: set[int] = set()
        if self._may_follow:
            followed = {key[0] for key, track in self._tracks.items() if track.event is not None}
            self._may_follow = bool(followed)
        is_audited, is_due = self._audits.is_due(step), self._is_due(n_updates)
        if not (is_audited or is_due or followed):
            return []
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if is_audited:
            some = parameters[self._audits.part(step, len(parameters))]
            if len(some) == len(parameters):
                return parameters
        else:
            stride = -(-len(parameters) // PARAMETERS) if parameters else 1
            some = parameters[n_updates % stride :: stride] if is_due else []
        return [*some, *(p for p in parameters if id(p) in followed and not any(p is one for one in some))]

    def before_update(self, update: Update) -> None:
        """Compare it with what is there."""
        optimizer = self.context.framework.optimizer(update.optimizer)
        if optimizer is None:
            return
        kept = self._of(optimizer)
        if kept.n_updates == 0:
            self._look_for_new_state(optimizer, update)
        if kept.options:
            now = self.context.framework.settings(optimizer)
            if now == kept.options and kept.track.event is None:
                kept.track.n_stayed += 1
            else:
                self._look_at_options(kept, now, update.step)
        if not update.check.is_finite:
            return
        looked_at, n = self._look_again(kept, update), 0  # and so many more, which are as they were
        if kept.blocks:
            with self._audits.spending(calls_program=False):
                n, others = self._compared(optimizer, kept, update)
                looked_at += others
            kept.blocks = ()
        if not looked_at and not n:
            return
        for key, parameter, counts in looked_at:
            self._look(key, parameter, update.step, counts)
        order, changed = self.context.clock.next_order, sum(n > 0 for *_, (_, n) in looked_at)
        for kind in sorted({name for (_, name), _, (_, n) in looked_at if n}):
            of_kind = [n for (_, name), _, (_, n) in looked_at if name == kind]
            pair = len(of_kind), sum(map(bool, of_kind))
            self.rows.append(count_row(SITE, CHANGED, update.step, order(), pair, module=kind))
        if self._audits.is_due(update.step):
            n += len(looked_at)
            balanced = n, n - changed
            self.rows.append(count_row(SITE, BALANCED, update.step, order(), balanced, module=BETWEEN))

    def _compared(
        self, optimizer: Any, kept: _Kept, update: Update
    ) -> tuple[int, list[tuple[_Key, Any, tuple[int, int]]]]:
        """How much of what was kept is as it was, and all else: (key, parameter, elements looked at and changed)."""
        framework, held = self.context.framework, update.ids  # a head that was replaced is held no more
        before = [replace(block, parameters=[ref() for ref in block.parameters]) for block in kept.blocks]
        alive = [p for block in before for p in block.parameters if id(p) in held and id(p) not in kept.moved]
        now = self._blocks(optimizer, alive)
        if _are_same(framework, before, now):
            keys = [
                (id(p), name)
                for block in now
                for name, column in block.columns.items()
                for p, n in zip(block.parameters, column.sizes, strict=True)
                if n
            ]
            for key in keys:
                track = self._tracks.get(key) or self._tracks.setdefault(key, _Track())
                if track.event is None:
                    track.n_stayed += 1  # as of nearly all
                else:
                    self._follow(track, None, update.step)
            return len(keys), []
        there = {(id(p), name): part for block in now for p, name, part, _ in block.items()}
        ids = set(map(id, alive))
        looked = [each for block in before for each in block.items() if id(each[0]) in ids]
        trios = [(part, there.get((id(p), name)), slack_of(form)) for p, name, part, form in looked]
        counts = framework.n_changed(trios)
        return 0, [((id(p), name), p, each) for (p, name, _, _), each in zip(looked, counts, strict=True)]

    def _has_state(self, optimizer: Any, update: Update) -> bool:
        return bool(update.parameters) and bool(self.context.framework.state_of(optimizer, update.parameters[0]))

    def _look_for_new_state(self, optimizer: Any, update: Update) -> None:
        """An optimizer that begins with nothing, although another one has updated its parameters for long."""
        first = update.parameters[0] if update.parameters else None
        if id(first) in self._long_held and not self._has_state(optimizer, update):
            order, n = self.context.clock.next_order(), len(update.parameters)
            row = count_row(self.context.label(first), CHANGED, update.step, order, (n, n), module=STATE)
            self.rows.append(replace(row, op=GONE))

    def _look_at_options(self, kept: _Kept, now: list[dict[str, float]], step: int) -> None:
        row: Reading | None = None
        if now != kept.options and len(now) == len(kept.options):
            others = (
                (i, name)
                for i, group in enumerate(now)
                for name in group
                if name in kept.options[i]
                and group[name] != kept.options[i][name]
                and not (kept.is_scheduled and name in SCHEDULED)
            )
            if (other := next(others, None)) is not None:
                number, name = other
                order = self.context.clock.next_order()
                row = number_row(f"group[{number}].{name}", CHANGED, step, order, now[number][name], module=OPTION)
                row = replace(row, op=f"{kept.options[number][name]:g}")
        self._follow(kept.track, row, step)

    def _look(self, key: _Key, parameter: Any, step: int, counts: tuple[int, int]) -> None:
        track = self._tracks.setdefault(key, _Track())
        self._follow(track, self._row(key, parameter, step, counts) if counts[1] else None, step)

    def _follow(self, track: _Track, row: Reading | None, step: int) -> None:
        """One more look: what has changed, or None."""
        if row is None:
            track.n_stayed += 1
            if track.event is not None and track.n_stayed >= FOLLOWED:
                self._tell(track, replace(track.event, step=step, call=step - track.event.step))
            return
        if track.is_over or track.event is not None:
            track.is_over, track.event = True, None
        elif track.n_stayed >= STAYS and row.module != OPTION:
            self._tell(track, row)
        else:
            track.event, self._may_follow = row, True
        track.n_stayed = 0

    def _tell(self, track: _Track, row: Reading) -> None:
        self.rows.append(row)
        track.is_over, track.event = True, None

    def _row(self, key: _Key, parameter: Any, step: int, counts: tuple[int, int]) -> Reading:
        row = count_row(
            self.context.label(parameter), CHANGED, step, self.context.clock.next_order(), counts,
            shape=tuple(parameter.shape), module=key[1],
        )  # fmt: skip
        writer = self.context.writer_of(parameter)
        source = source_of(writer[0].co_filename, writer[1], writer[0].co_name) if writer is not None else None
        return replace(row, source=source, op="" if counts[0] else GONE)

    def _blocks(self, optimizer: Any, parameters: Sequence[Any]) -> list[Block]:
        """Parameters and their state, by its names."""
        framework = self.context.framework
        states: list[Any] = [framework.state_of(optimizer, parameter) for parameter in parameters]
        held = [
            {VALUE: p, **(state if isinstance(state, Mapping) else {})}
            for p, state in zip(parameters, states, strict=True)
        ]
        return blocks(framework, parameters, held, ELEMENTS)


def _are_same(framework: Framework, before: Sequence[Block], now: Sequence[Block]) -> bool:
    """Whether these hold the same, bit for bit: NaN is not itself."""
    pairs: list[tuple[Any, Any]] = []
    for one, other in zip_longest(before, now):
        if one is None or other is None or len(one.parameters) != len(other.parameters):
            return False
        if one.columns.keys() != other.columns.keys() or not all(map(is_, one.parameters, other.parameters)):
            return False
        for name, column in one.columns.items():
            there = other.columns[name]
            if column.sizes != there.sizes or column.form != there.form:
                return False
            pairs.append((column.values, there.values))
    return framework.all_same(pairs)


def jumped(before: NDArray[Any], now: NDArray[Any]) -> str:
    """ "element 7 was 0.5 and is 32768", where one element alone has another sign or exponent; else nothing.

    Args:
        before, now: in float64, one-dimensional.
    """
    at = np.flatnonzero(before != now)
    if len(at) != 1 or before[at[0]] == 0.0 or not np.isfinite(now[at[0]]):
        return ""
    was, is_now = float(before[at[0]]), float(now[at[0]])
    fraction, exponent = math.frexp(is_now / was)
    order = abs(exponent - 1)  # one bit of the exponent is worth a power of two of orders
    is_bit = fraction == 0.5 and order >= LEAST_JUMP and order & (order - 1) == 0
    return f"element {at[0]} was {was:.6g} and is {is_now:.6g}" if is_bit or is_now == -was else ""


def _slack(framework: Framework, tensor: Any) -> float:
    return slack_of(framework.name_of(tensor.dtype))
