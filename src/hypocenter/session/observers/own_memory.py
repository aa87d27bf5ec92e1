"""The law "own memory": what an optimizer remembers does not lie where backward adds up gradients. For HC235.

A state that was set to a gradient without `clone()` is that gradient for as long as it is zeroed in place: backward
adds to what the optimizer remembers, and `zero_grad` deletes it. A gradient that is set to None is another tensor in
the next step, and nothing is said of a state that holds the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hypocenter import schedule
from hypocenter.detect.law_rows import OVERLAPS
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row

LAST = 64  # step
LOOKS = 2  # at which it lies there
GRADIENT = "grad"  # in the name of a state: it is meant to be one


class OwnMemory(Observer):
    """Writes a row for the first parameter whose state is a gradient."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._n_looks: Counter[tuple[int, str]] = Counter()  # by id of a parameter and name of its state

    def before_update(self, update: Update) -> None:
        """Look if the state that the last update left lies in the memory of the final gradients."""
        optimizer = self.context.framework.optimizer(update.optimizer)
        if optimizer is None or not self._is_due(update.step):
            return
        gradients = [each for p in update.parameters if (each := _place(p.grad)) is not None]
        places = dict(gradients)  # one of each storage tells whether to look closer
        found = [
            (p, name)
            for p in update.parameters
            for name, place in _states(optimizer, p)
            if place[0] in places and any(_overlap(place, each) for each in gradients)
        ]
        self._n_looks.update((id(p), name) for p, name in found)
        if found and max(self._n_looks[id(p), name] for p, name in found) == LOOKS:
            parameter, name = found[0]
            label, order = self.context.label(parameter), self.context.clock.next_order()
            row = number_row(label, OVERLAPS, update.step, order, len(found), module=name, call=LOOKS)
            self.rows.append(replace(row, op=type(optimizer).__name__))


def _states(optimizer: Any, parameter: Tensor) -> Iterator[tuple[str, tuple[int, range]]]:
    state = optimizer.state.get(parameter) or {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and GRADIENT not in str(name).lower():
            place = _place(value)
            if place is not None:
                yield str(name), place


def _place(tensor: Tensor | None) -> tuple[int, range] | None:
    """Return a tensor's storage and the bytes of it that it reaches over; None if it has no such memory."""
    if tensor is None or tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return None
    try:
        storage = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a subclass without storage
        return None
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    begin = tensor.storage_offset() * tensor.element_size()
    return (storage, range(begin, begin + reach * tensor.element_size())) if storage else None


def _overlap(one: tuple[int, range], other: tuple[int, range]) -> bool:
    return one[0] == other[0] and one[1].start < other[1].stop and other[1].start < one[1].stop
