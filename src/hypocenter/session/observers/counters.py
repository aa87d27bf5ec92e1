"""An Adam of the program's own counts its steps once each, and its averages keep as much as they take in. For HC235."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypocenter.detect.law_rows import EACH_PARAMETER, NO_AVERAGE_OF, NOT_BY_RULE, SITE
from hypocenter.nouns import Reading, replace
from hypocenter.optimizers.averaged import NEAR, Unlike, unlike
from hypocenter.optimizers.fitted import Moved
from hypocenter.optimizers.step_counter import Betas, betas_of, counts_parameters
from hypocenter.session.observers.optimizer_rows import number_row

TIMES = 2  # audited steps in a row, the first one among them


class Counters:
    """Looks at optimizers whose rule is not known, from their first steps on."""

    def __init__(self) -> None:
        self._betas: dict[int, Betas | None] = {}  # by id of an optimizer; None: it is no such Adam, or was told
        self._times: dict[int, int] = {}
        self._unlike: dict[int, tuple[Unlike, int] | None] = {}  # with the step; None: it was told

    def of_averages(self, optimizer: Any, step: int, moved: Sequence[Moved]) -> Reading | None:
        """Return a row, once, for one whose averages do not fit in the same way at two audited steps in a row."""
        key = id(optimizer)
        if not moved or self._unlike.get(key, moved) is None:
            return None
        before, now = self._unlike.pop(key, None), unlike(moved)
        if now is None:
            return None
        if before is None or not _are_alike(before[0], now):
            self._unlike[key] = now, step
            return None
        self._unlike[key] = None
        row = number_row(SITE, NOT_BY_RULE, step, 0, now.taken, module=NO_AVERAGE_OF, call=step - before[1])
        names = (now.square, f"{now.kept:.4g}", f"{now.taken:.4g}", f"{now.kept + now.taken:.4g}", now.mean)
        return replace(row, op=type(optimizer).__name__, names=names)

    def row(self, optimizer: Any, step: int, moved: Mapping[int, Moved]) -> Reading | None:
        """Return a row, once, for one that counts wrongly.

        Args:
            step: of the program, which is that of the optimizer where it has made an update in each.
            moved: by id of its parameters; those without a gradient are not there.
        """
        rates = _rates(optimizer)
        together = [(moved[key], rate) for key, rate in rates.items() if key in moved]
        if not together or len(together) < len(moved):
            return None
        key, in_order = id(optimizer), [each for each, _ in together]
        if key not in self._betas:
            is_alike = all(each.new.keys() == in_order[0].new.keys() for each in in_order)
            self._betas[key] = betas_of(in_order) if step == 0 and is_alike else None
        betas = self._betas[key]
        if betas is None:
            return None
        if not counts_parameters(in_order, [rate for _, rate in together], betas, step * len(in_order)):
            self._betas[key] = None
            return None
        self._times[key] = self._times.get(key, 0) + 1
        if self._times[key] < TIMES:
            return None
        self._betas[key] = None
        row = number_row(SITE, NOT_BY_RULE, step, 0, len(in_order), module=EACH_PARAMETER, call=step)
        return replace(row, op=type(optimizer).__name__)


def _are_alike(a: Unlike, b: Unlike) -> bool:
    is_near = all(abs(x / y - 1.0) <= NEAR for x, y in ((a.kept, b.kept), (a.taken, b.taken)))
    return is_near and (a.mean, a.square) == (b.mean, b.square)


def _rates(optimizer: Any) -> dict[int, float]:
    """By id of a parameter, in the order in which a loop over the groups comes to them."""
    groups: Sequence[Mapping[str, Any]] = getattr(optimizer, "param_groups", ())
    return {
        id(p): float(group["lr"]) for group in groups if isinstance(group.get("lr"), float) for p in group["params"]
    }
