"""Whether an optimizer goes on where the one before it stopped, or begins without its state. For HC259."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from hypocenter.detect.law_rows import SITE, STATE_LOST
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.weakly import Ref

TIMES = 2  # a schedule of stages makes a new one once; what does so again and again forgets again and again


@dataclass(slots=True)
class _Last:
    """What the last update of some parameters left: its optimizer, rate and state."""

    optimizer: weakref.ref[Any]
    lr: float
    stage: tuple[Any, ...] = ()  # as `_stage` has it
    had_state: bool = False
    version: int = 0
    n_lost: int = 0
    seen: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])  # optimizers that have updated them


class FreshState(Observer):
    """Writes a row when optimizer after optimizer takes over the same parameters, with none of the state."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._last: dict[int, _Last] = {}  # by id of the first parameter

    def before_update(self, update: Update) -> None:
        """Note that a new optimizer takes over parameters that nothing else has written to; tell when that repeats."""
        optimizer = update.optimizer
        last = self._last.get(id(update.parameters[0])) if update.parameters else None
        if not isinstance(optimizer, Optimizer) or last is None or last.optimizer() is optimizer:
            return
        is_new = last.had_state and not optimizer.state and optimizer not in last.seen
        is_new = is_new and last.version == update.parameters[0]._version and last.stage == self._stage(optimizer)
        last.n_lost = last.n_lost + 1 if is_new and _rate(optimizer) == last.lr else 0
        last.seen.add(optimizer)
        if last.n_lost == TIMES:
            order = self.context.clock.next_order()
            row = number_row(SITE, STATE_LOST, update.step, order, float(TIMES), module=type(optimizer).__name__)
            self.rows.append(row)

    def after_update(self, update: Update) -> None:
        """Remember the optimizer, its rate and whether it has state."""
        optimizer = update.optimizer
        if not update.parameters or not isinstance(optimizer, Optimizer):
            return
        first = update.parameters[0]
        last = self._last.get(id(first))
        if last is None or last.optimizer() is not optimizer:
            last = self._last[id(first)] = last or _Last(Ref(optimizer), 0.0)
            last.optimizer = Ref(optimizer)
            last.seen.add(optimizer)
            last.stage = self._stage(optimizer)
            last.had_state = any(v is not None for state in optimizer.state.values() for v in state.values())
        last.lr, last.version = _rate(optimizer), first._version

    def _stage(self, optimizer: Optimizer) -> tuple[Any, ...]:
        """Return what a new stage of training changes: what is trained, how, and the masks that a model holds."""
        how = [[(k, v) for k, v in group.items() if _is_set(k, v)] for group in optimizer.param_groups]
        which = {id(p): p.requires_grad for group in optimizer.param_groups for p in group["params"]}
        roots = [root for root in self.context.names.roots() if any(id(p) in which for p in root.parameters())]
        held = [id(each) for root in roots for each in (*root.modules(), *root.buffers())]
        return type(optimizer), how, which, held


def _is_set(name: str, value: Any) -> bool:
    """Whether it is an option that nothing but the program changes: no rate, and no tensor."""
    return name not in ("lr", "initial_lr") and isinstance(value, (bool, int, float, str, tuple))


def _rate(optimizer: Optimizer) -> float:
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None  # a container has none of its own
    return rate if isinstance(rate, float) else 0.0  # a tensor: reading it would wait for the device
