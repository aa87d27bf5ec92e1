"""The law of one hand: what a backward pass gives to a parameter is used by one update. For HC233.

Two optimizers that hold the same parameter, and both step between one backward pass and the next, use its gradient
twice: it moves twice as far as the others. Where one of them holds all that the other does, a program may mean it as a
larger step of a part; where each has parameters of its own as well, what they share was given to both by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import TWO_HANDS
from hypocenter.nouns import replace
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.weakly import Ref

TIMES = 4  # updates in a row
LAST = 64  # step: what a program does, it does from the first one on


@dataclass(slots=True)
class _Used:
    """What an update used, since the last backward pass."""

    optimizer: Ref[Any]
    held: frozenset[int]  # ids of parameters
    gradients: Sequence[tuple[Ref[Any], Ref[Any], int, int]]  # parameter, gradient, and the version of each


class TwoHands(Observer[Observed]):
    """Writes a row for the parameters that two optimizers move by one gradient."""

    until = LAST

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._seen: set[int] = set()  # ids of optimizers
        self._used: list[_Used] = []
        self._since: dict[tuple[int, int], list[int]] = {}  # by ids of two optimizers: steps in a row that shared one

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Other gradients are made."""
        self._used = []

    def before_update(self, update: Update) -> None:
        """Look for what an update of another optimizer used, and moved, just now."""
        if update.optimizer is None or update.scaled is not None or not update.check.is_finite:
            return
        self._seen.add(id(update.optimizer))
        if len(self._seen) < 2 and update.step:
            return  # it would cost for nothing
        framework, own = self.context.framework, update.ids
        for used in self._used:
            other = used.optimizer()
            if other is not None and other is not update.optimizer:
                self._compare(update, own, used, other)
        versions = framework.versions([tensor for pair in update.gradients for tensor in pair])
        gradients = [
            (Ref(p), Ref(g), p_version, g_version)
            for (p, g), p_version, g_version in zip(update.gradients, versions[::2], versions[1::2], strict=False)
        ]
        self._used.append(_Used(Ref(update.optimizer), own, gradients))

    def _compare(self, update: Update, own: frozenset[int], used: _Used, other: Any) -> None:
        key = id(other), id(update.optimizer)
        names = self._twice(update, used) if own - used.held and used.held - own else []
        if not names or not all(map(self._follows_gradients, (other, update.optimizer))):
            self._since.pop(key, None)
            return
        steps = self._since.setdefault(key, [])
        steps.append(update.step)
        if len(steps) == TIMES:
            kind = f"{type(other).__name__} and {type(update.optimizer).__name__}"
            row = number_row(
                names[0], TWO_HANDS, update.step, self.context.clock.next_order(), update.step - steps[0],
                call=len(names),
            )  # fmt: skip
            self.rows.append(replace(row, op=kind))

    def _twice(self, update: Update, used: _Used) -> list[str]:
        """Return the names of what the other update moved by the very gradient that this one is about to use."""
        framework, now = self.context.framework, {id(p): (p, g) for p, g in update.gradients}
        pairs = [(now.get(id(p())), p(), g(), *versions) for p, g, *versions in used.gradients if p() is not None]
        same = [(p, g, *versions) for pair, p, g, *versions in pairs if pair and pair[0] is p and pair[1] is g]
        tensors = [tensor for p, g, *_ in same for tensor in (p, g)]
        versions = framework.versions(tensors)
        return [
            name
            for (p, _, p_then, g_then), p_now, g_now in zip(same, versions[::2], versions[1::2], strict=False)
            if p_now != p_then and g_now == g_then
            and update.check.grad_norms.get(name := self.context.label(p), 0.0) > 0.0
        ]  # fmt: skip

    def _follows_gradients(self, optimizer: Any) -> bool:
        """Return whether it is of a known rule, with a number above 0 as each learning rate."""
        inner = self.context.framework.optimizer(optimizer)
        if inner is None or not self.context.framework.family_of(inner):
            return False
        rates = [group.get("lr") for group in inner.param_groups]
        return all(isinstance(rate, float) and rate > 0.0 for rate in rates)
