"""Recomputation in MindSpore (`ms.recompute`, PyNative): does backward compute what forward has computed? For HC336.

MindSpore's own cell around a recomputed one is listened to. Not looked at: `use_reentrant=False`, and graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore.ops.composite import base  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter import schedule
from hypocenter.detect.microbatch_rows import GAP
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.observers.accumulated_rows import recompute_rows
from hypocenter.tap.mindspore.tape import tensors

Array = NDArray[Any]
ELEMENTS = 1024  # of an output
DENSE = 8  # steps that are all looked at, from the first recompute on; then as often as replicas are


@dataclass(frozen=True, slots=True)
class _Made:
    given: Array | None
    made: Array


class Recompute(Part):
    """Compares the outputs of forward and recompute in the first micro-batch of a step."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.replicas)
        self._n_looked = 0
        self._forward: dict[int, list[_Made]] = {}  # id of the recomputing cell -> its calls that backward is to undo
        self._under_way: Any = None  # the recomputing cell whose backward runs
        self._gaps: list[tuple[str, str, float, float | None, tuple[int, int]]] = []

    def attach(self) -> Callable[[], None]:
        """Wrap the cell that recomputes. Nothing is called in a program that recomputes nothing."""
        try:
            from mindspore.common.recompute import _RecomputeCell  # pyright: ignore[reportMissingImports]
        except ImportError:  # another version of MindSpore
            return lambda: None
        self.context.patches.wrap(_RecomputeCell, "construct", self._constructed)
        self.context.patches.wrap(_RecomputeCell, "bprop", self._undone)
        self.context.patches.wrap(base, "_pynative_forward_run", self._ran)  # pyright: ignore[reportArgumentType]
        return lambda: None

    @property
    def _is_on(self) -> bool:
        clock = self.context.clock
        return clock.recording and not clock.microbatch and (self._n_looked < DENSE or self._due(clock.step))

    def _constructed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def construct(cell: Any, *args: Any, **kwargs: Any) -> Any:
            given = self._sample(args) if self._is_on else None  # the cell may write to what it is given
            output = original(cell, *args, **kwargs)
            made = self._sample(output) if self._is_on else None
            if made is not None:
                self._forward.setdefault(id(cell), []).append(_Made(given, made))
            return output

        return construct

    def _undone(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def bprop(cell: Any, *args: Any) -> Any:
            was, self._under_way = self._under_way, cell
            try:
                return original(cell, *args)
            finally:
                self._under_way = was

        return bprop

    def _ran(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(fn: Any, sens_param: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(fn, sens_param, *args, **kwargs)
            cell = self._under_way
            if cell is not None and fn is cell.net:
                self._under_way = None
                calls = self._forward.get(id(cell))
                if calls:
                    self._compare(cell.net, calls.pop(), args, found[1])
            return found

        return forward

    def _compare(self, net: Any, was: _Made, args: Any, output: Any) -> None:
        given, made = self._sample(args), self._sample(output)
        gap = None if made is None else _gap(was.made, made)
        if made is None or gap is None:
            return
        name = self.context.names.cell_name(net) or type(net).__name__
        zeros = int(((was.made == 0) != (made == 0)).sum())
        gap_in = None if was.given is None or given is None else _gap(was.given, given)
        self._gaps.append((name, type(net).__name__, gap, gap_in, (len(made), zeros)))

    def before_update(self, update: Update) -> None:
        """Write the rows of the first wrong module in the order of forward, which backward has met last."""
        gaps, self._gaps, self._forward = self._gaps, [], {}
        self._n_looked += bool(gaps)
        wrong = [gap for gap in gaps if gap[2] > GAP]
        if wrong:
            name, kind, gap, gap_in, zeros = wrong[-1]
            order = self.context.clock.next_order
            self.rows += recompute_rows(name, kind, update.step, gap, gap_in, zeros, order)

    def _sample(self, values: Any) -> Array | None:
        """Return a sample of the first tensor of a floating-point format; None without one."""
        first = next((each for each in tensors(values) if "loat" in str(each.dtype)), None)
        found = None if first is None else self.context.framework.sample(first, ELEMENTS)
        return None if found is None else self.context.framework.wide(found)


def _gap(one: Array, other: Array) -> float | None:
    """Return the distance of two arrays relative to the first; None where they cannot be compared."""
    size = float(np.linalg.norm(one))
    if one.shape != other.shape or not 0 < size < math.inf:
        return None
    return float(np.linalg.norm(one - other)) / size
