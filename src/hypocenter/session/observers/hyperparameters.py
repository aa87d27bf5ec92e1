"""Hyper-parameters that a low format rounds: tensors in param_groups, and numbers applied to low-precision state."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hypocenter.detect.update_rows import HYPER, HYPER_ROUNDED
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.framework import Framework
from hypocenter.session.observers.low_places import EVERY
from hypocenter.session.observers.optimizer_rows import number_row

_FACTORS = ("betas", "beta", "momentum", "alpha", "rho", "decay")  # what state is multiplied by


class Hyperparameters(Observer[Observed]):
    """Reads param_groups at the first updates and then rarely; rows for each one that meets a low format."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._seen: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        """Updates of an optimizer that it was told of, and the step of the last look."""
        self._said: set[tuple[str, str, float]] = set()

    def at_rest(self) -> Iterable[str]:
        """It looks at steps at which all are told."""
        return ("after_update",)

    def after_update(self, update: Update) -> None:
        """Look at the options after an update, as the optimizer has its state then."""
        framework = self.context.framework
        optimizer = framework.optimizer(update.optimizer)
        if optimizer is None or update.skipped:
            return
        n, looked = self._seen.get(optimizer, (0, update.step))
        is_due = n < 2 or update.step - looked >= EVERY
        self._seen[optimizer] = n + 1, update.step if is_due else looked
        if not is_due:
            return
        kind = getattr(optimizer, "kind", type(optimizer).__name__)
        for index, group in enumerate(optimizer.param_groups):
            dtype = _state_dtype(framework, optimizer, group)
            for name, value, is_factor in _numbers(framework, group):
                if not is_factor and group.get("fused"):
                    continue  # a fused kernel adds eps in float32, whatever the state's format
                self._note(f"param_groups[{index}].{name}", value, dtype, kind, update.step,
                           is_factor=is_factor)  # fmt: skip

    def _note(self, site: str, value: Any, state: Any, optimizer: str, step: int, *, is_factor: bool) -> None:
        framework = self.context.framework
        own = value.dtype if framework.is_low(value) else None
        dtype = own if own is not None else state
        if dtype is None or not (is_factor or site.endswith(".eps")):
            return
        given = float(value)
        there = given if own is not None else framework.rounded(given, dtype)
        name = framework.name_of(dtype)
        if (site, name, given) in self._said:
            return
        self._said.add((site, name, given))
        order, module = self.context.clock.next_order, f"{optimizer} {'tensor' if own is not None else 'state'}"
        for port, number in ((HYPER, given), (HYPER_ROUNDED, there)):
            self.rows.append(number_row(site, port, step, order(), number, dtype=name, module=module))


def _numbers(framework: Framework, group: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, value, whether state is multiplied by it) of options that may round badly."""
    for key in (*_FACTORS, "eps"):
        value = group.get(key)
        for index, each in enumerate(value) if isinstance(value, (tuple, list)) else [(None, value)]:
            if (isinstance(each, (int, float)) and not isinstance(each, bool)) or (
                framework.is_tensor(each) and tuple(getattr(each, "shape", (0,))) in ((), (1,))
            ):
                yield (key if index is None else f"{key}[{index}]"), each, key != "eps"


def _state_dtype(framework: Framework, optimizer: Any, group: Mapping[str, Any]) -> Any:
    """Return the low format of the first element-wise state in a group; None when it is not low."""
    for parameter in group["params"]:
        for value in framework.state_of(optimizer, parameter).values():
            if framework.is_tensor(value) and value.shape == parameter.shape and "loat" in str(value.dtype):
                return value.dtype if framework.is_low(value) else None
    return None
