"""Whether learning-rate schedules and weight averages advance although there was no update, or it was skipped.

For HC214.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from hypocenter.detect import misuse
from hypocenter.session.check import scalar_reading
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.tap.source import user_frame
from hypocenter.tap.weakly import Ref

OWN = ("torch", "mindspore")  # packages whose optimizers make no other step
LINES_LOOKED = 16  # updates of a schedule in which the lines that advance it are noted
AHEAD = 4  # updates of an optimizer before a schedule of its own began
MOST_HELD = 8  # optimizers whose parameters are kept in mind
LONG, FEW_STEPS = 16, 4  # steps of a schedule, and a share of them: one of so many
IDLE, IDLE_SHARE = 8, 0.05  # updates at a learning rate of 0, and their share of those of the schedule
ENOUGH = 4  # updates that were not skipped, to know whether a schedule steps once per update or once per epoch


@dataclass(slots=True)
class _Count:
    """What is known of one scheduler, or of one average of weights."""

    owner: weakref.ref[Any]  # the scheduler or average
    name: str  # its class
    optimizer: Any  # None: an average, which belongs to any update
    length: int = 0  # steps for which it says that it was made
    n_steps: int = 0
    began: int = 0  # updates of the process before its first step
    ended: int = 0  # before its last one
    n_steps_on_skipped: int = 0
    n_skipped: int = 0  # skipped updates in its time
    n_updates: int = 0
    n_updates_followed: int = 0  # updates that it stepped after
    drift: float = 0.0
    is_due: bool = False  # it has advanced on a skipped update since the last rows
    is_reported: bool = False  # rows were written
    stepped: bool = False  # since the last update
    after: list[int] = field(default_factory=list)  # of its steps since then: micro-batches before it
    n_each_time: int = 0  # updates in a row for each of whose micro-batches it stepped
    n_microbatches: int = 0  # of each of them, once that is known of so many
    lines: set[tuple[str, int]] = field(default_factory=set)  # since then, that made it step
    n_lines: int = 0  # steps of two lines, at updates in a row
    n_of_another: int = 0  # updates in a row that another optimizer made of its parameters, while it stepped
    first_of_another: int = 0  # the step of the first of these
    lrs: tuple[Any, Any] = (None, None)  # then: its own learning rate, and that of the other
    has_moved: bool = False  # its own has, that of the other has not
    is_told: bool = False  # that it goes on past its end
    last_skipped: bool | None = None  # whether the last update was; None: none yet
    last_lr: float | None = None
    has_rate: bool = False  # it was another than 0
    n_idle: int = 0  # updates in a row, up to the last one, at a learning rate of 0


class Schedules(Observer[Observed]):
    """Counts steps of schedules between one update and the next. Rows are written only after a skipped update."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._counts: dict[int, _Count] = {}
        self._step = 0
        self._n_updates = 0  # of this process: one that was resumed has made a part of those of its schedule
        self._held: dict[int, frozenset[int]] = {}  # parameters of the last few optimizers
        self._last: dict[int | None, tuple[bool, float | None]] = {}  # skipped, learning rate; by optimizer, None: any

    def attach(self) -> Callable[[], None]:
        """Listen to schedulers and averages; returns the undo."""
        return self.context.framework.schedules(self._advanced, self.context.warn)

    def _advanced(self, scheduler: Any, optimizer: Any) -> None:
        count = self._counts.get(id(scheduler))
        if count is None or count.owner() is not scheduler:
            optimizer = _unwrapped(optimizer)
            skipped, lr = self._last.get(None if optimizer is None else id(optimizer), (None, None))
            name, length = type(scheduler).__name__, _length(scheduler)
            count = _Count(Ref(scheduler), name, optimizer, last_skipped=skipped, last_lr=lr, length=length)
            count.has_rate, count.began = bool(lr), self._n_updates
            self._counts[id(scheduler)] = count
        count.n_steps, count.ended, count.stepped = count.n_steps + 1, self._n_updates, True
        if count.n_updates < LINES_LOOKED and (frame := user_frame(sys._getframe(1))) is not None:
            count.lines.add((frame.f_code.co_filename, frame.f_lineno))
        if count.n_each_time < ENOUGH:
            count.after.append(len(self.context.tape.microbatches))

    def before_update(self, update: Update) -> None:
        """Count what has advanced since the update before."""
        for count in self._counts.values():
            if count.optimizer is None or count.optimizer is update.optimizer:
                takes_turns = count.n_of_another >= ENOUGH  # the other one's are over: they may come again
                count.n_of_another, count.has_moved = -(1 << 30) if takes_turns else min(count.n_of_another, 0), False
                self._close(count, update)
            elif count.stepped:
                self._look_for_another(count, update)

    def _look_for_another(self, count: _Count, update: Update) -> None:
        """Tell of a schedule for an optimizer that is not used, while another one updates its parameters."""
        own, theirs = (getattr(each, "param_groups", None) for each in (count.optimizer, update.optimizer))
        if not own or not theirs or any(group is other for group in own for other in theirs):
            return
        if count.n_of_another > 2 * ENOUGH:
            return
        if type(update.optimizer).__module__.partition(".")[0] not in OWN:
            return  # it may make the others step
        held = {id(p) for group in theirs for p in group["params"]}
        if not any(id(p) in held for group in own for p in group["params"]):
            return
        now = self._learning_rate(count.optimizer)[0], self._learning_rate(update.optimizer)[0]
        if count.n_of_another and now[1] != count.lrs[1]:
            count.n_of_another = -(1 << 30)  # somebody sets that one too
        count.has_moved = count.has_moved or (count.n_of_another > 0 and now[0] != count.lrs[0])
        if count.n_of_another == 0:
            count.first_of_another = update.step
        count.lrs, count.n_of_another, count.stepped = now, count.n_of_another + 1, False
        if count.n_of_another >= 2 * ENOUGH and count.has_moved:
            self._row(count, misuse.OF_ANOTHER, float(count.n_of_another), update.step, count.first_of_another)
            count.n_of_another = -(1 << 30)

    def _look_at_place(self, count: _Count, update: Update) -> None:
        """Tell of a schedule that is at its beginning although its optimizer is not, of the reverse, and of its end."""
        scheduler = count.owner()
        at, end = getattr(scheduler, "last_epoch", None), getattr(scheduler, "T_max", None)
        if not isinstance(at, int):
            return
        if isinstance(end, int) and count.name == "CosineAnnealingLR" and at > end and not count.is_told:
            count.is_told = True
            self._row(count, misuse.PAST_END, float(end), update.step)
        if count.n_updates != ENOUGH or not count.n_steps == count.n_updates_followed == ENOUGH:
            return
        made = self._n_made(update)
        if at == ENOUGH and made - ENOUGH >= AHEAD:
            self._row(count, misuse.ANEW, made - ENOUGH, update.step, update.step - ENOUGH)
        elif at - ENOUGH >= AHEAD and 0 < made <= ENOUGH + 1 and not self._is_of_a_stage(update):
            self._row(count, misuse.STATE_ANEW, float(at - ENOUGH), update.step, update.step - ENOUGH)

    def _is_of_a_stage(self, update: Update) -> bool:
        """Return whether an optimizer before had some of these parameters and not the same: a stage of training."""
        own = update.ids
        return any(not held.isdisjoint(own) and held != own for held in self._held.values())

    def _n_made(self, update: Update) -> float:
        """Return how many updates the optimizer has counted; 0 if it counts none, or on a device."""
        framework = self.context.framework
        optimizer = framework.optimizer(update.optimizer)
        if optimizer is None or not update.parameters:
            return 0.0
        made = framework.state_of(optimizer, update.parameters[0]).get("step")
        if framework.is_tensor(made) and not framework.is_on_host(made):
            return 0.0  # reading it would wait for the device
        return float(made) if made is not None else 0.0

    def _close(self, count: _Count, update: Update) -> None:
        lr, height = self._learning_rate(update.optimizer)
        if count.last_skipped:
            count.n_skipped += 1
            count.n_steps_on_skipped += count.stepped
            count.is_due = count.is_due or count.stepped
            if count.stepped and count.last_lr is not None and lr is not None and height:
                count.drift += abs(lr - count.last_lr) / height
        elif count.last_skipped is not None:
            count.n_updates += 1
            count.n_updates_followed += count.stepped
        count.stepped, count.last_lr, count.has_rate = False, lr, count.has_rate or bool(lr)
        count.n_idle = count.n_idle + 1 if lr == 0 and self._is_idle(update.optimizer) else 0
        lines, count.lines = count.lines, set()
        if count.optimizer is not None and count.n_updates < LINES_LOOKED:
            count.n_lines = count.n_lines + 1 if len(lines) == 2 and len(update.microbatches) < 2 else 0
            if count.n_lines == ENOUGH:
                row = scalar_reading(
                    misuse.FROM_TWO_LINES, "optimizer", 2.0, update.step, self.context.clock.next_order()
                )
                names = tuple(f"{PurePath(file).name}:{line}" for file, line in sorted(lines))
                self.rows.append(replace(row, module=count.name, names=names, call=ENOUGH))
        if count.optimizer is not None:
            self._look_at_place(count, update)
        if count.n_each_time < ENOUGH:
            n = len(update.microbatches)
            is_each = n > 1 and len(count.after) == len(set(count.after)) == n
            count.after, count.n_each_time = [], count.n_each_time + 1 if is_each else 0
            if count.n_each_time == ENOUGH:
                count.n_microbatches = n
                self._row(count, misuse.PER_MICROBATCH, float(n), update.step, update.step - ENOUGH + 1)
        steps_each_time = count.n_updates_followed > count.n_updates / 2
        if count.is_due and not count.last_skipped and count.n_updates >= ENOUGH and steps_each_time:
            count.is_due, count.is_reported = False, True
            self._write(count, update.step)

    def after_update(self, update: Update) -> None:
        """Note if a loss scaler skipped the update."""
        self._step, key = update.step, id(update.optimizer)
        self._n_updates += 1
        if self._counts and key not in self._held:
            self._held = {**dict(list(self._held.items())[-MOST_HELD:]), key: frozenset(update.ids)}
        skipped = update.skipped and update.scaled is not None
        self._last[None] = self._last[key] = skipped, self._rate(update.optimizer)
        for count in self._counts.values():
            if count.optimizer is None or count.optimizer is update.optimizer:
                count.last_skipped = skipped

    def at_end(self) -> None:
        """Write the counts of the whole run, of what has advanced on skipped updates."""
        for count in self._counts.values():
            if count.last_skipped is not None:
                count.n_skipped += count.last_skipped
                count.n_updates += not count.last_skipped
                count.n_steps_on_skipped += count.last_skipped and count.stepped
            if count.is_reported:
                self._write(count, self._step)
                self._row(count, misuse.SCHEDULE_END, 1.0, self._step)
            is_of_run = count.length in (self._n_updates - 1, self._n_updates) and not self._is_followed(count)
            if is_of_run and FEW_STEPS * count.n_steps <= count.length >= LONG:
                self._row(count, misuse.HARDLY, float(count.length), self._step, 0)
                self.rows[-1] = replace(self.rows[-1], names=(str(count.n_steps),))
            if count.has_rate and count.n_idle >= max(IDLE, IDLE_SHARE * count.n_updates):
                self._row(count, misuse.OVER, float(count.n_idle), self._step, self._step - count.n_idle + 1)
                names = str(count.n_updates), *([str(count.n_microbatches)] if count.n_microbatches else ())
                self.rows[-1] = replace(self.rows[-1], names=names)

    def _is_followed(self, count: _Count) -> bool:
        """Return whether another schedule has begun since its last step: one that was made anew goes on with it."""
        return any(other is not count and other.began >= count.ended for other in self._counts.values())

    def _is_idle(self, optimizer: Any) -> bool:
        """Return whether an optimizer moves nothing: the learning rate of each of its groups is 0."""
        number = self.context.framework.number
        return all(number(group.get("lr")) == 0 for group in optimizer.param_groups)

    def _learning_rate(self, optimizer: Any) -> tuple[float | None, float | None]:
        """Return the first group's learning rate as it is now, and the most that its schedule will reach."""
        groups = getattr(optimizer, "param_groups", None)
        if not groups:
            return None, None
        values = [self.context.framework.number(groups[0].get(key)) for key in ("lr", "initial_lr", "max_lr")]
        return values[0], max((v for v in values if v is not None), default=None)

    def _rate(self, optimizer: Any) -> float | None:
        """Return the first of these two alone, as at each update."""
        groups = getattr(optimizer, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        return rate if rate is None or type(rate) is float else self.context.framework.number(rate)

    def _write(self, count: _Count, step: int) -> None:
        facts = {
            misuse.SCHEDULE: count.n_steps,
            misuse.ON_SKIPPED: count.n_steps_on_skipped,
            misuse.SKIPPED: count.n_skipped,
            misuse.UPDATES: count.n_updates,
            misuse.DRIFT: count.drift,
        }
        for site, value in facts.items():
            self._row(count, site, float(value), step)

    def _row(self, count: _Count, site: str, value: float, step: int, since: int | None = None) -> None:
        row = scalar_reading(site, "optimizer", value, step, self.context.clock.next_order())
        self.rows.append(replace(row, module=count.name, call=0 if since is None else step - since))


def _length(scheduler: Any) -> int:
    """Return for how many steps a schedule says that it was made; 0 if it does not."""
    functions = getattr(scheduler, "lr_lambdas", None)
    first = functions[0] if isinstance(functions, list) and functions else None
    said = getattr(first, "keywords", {}).get("num_training_steps")  # of transformers
    found = [getattr(scheduler, name, None) for name in ("total_steps", "T_max")]
    return next((each for each in (*found, said) if isinstance(each, int)), 0)


def _unwrapped(optimizer: Any) -> Any:
    """Return the torch optimizer inside a framework's wrapper (accelerate's)."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if inner is not None and hasattr(inner, "param_groups") else optimizer
