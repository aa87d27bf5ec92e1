"""Gradients of replays, brought to what the optimizer was given: summed over micro-batches, unscaled, clipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter.nouns import Reading
from hypocenter.session.gradient_factors import Factors
from hypocenter.session.mindspore.seams import Context, Due
from hypocenter.summary.reducers.mindspore import MindSporeReducer
from hypocenter.summary.reducers.mindspore_values import dtype_name, on_host
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall
from hypocenter.tap.wanted import is_wanted

Array = NDArray[Any]


class Gradients:
    """Adds up the gradients of one sample after the other. The first one is without noise: `fit` compares with it.

    Sums are of the format in which the gradients come out of backward, as the program's are.
    """

    def __init__(self, names: NameMap, due: Due) -> None:
        self._names = names
        self._pairs = list(due.gradients)
        self._places = {id(parameter): place for place, (parameter, _) in enumerate(self._pairs)}
        self._sums: list[Array | None] = [None] * len(self._pairs)
        self._factors = Factors([int(parameter.size) for parameter, _ in self._pairs])

    def add(self, call: GradCall, grads: Sequence[Any]) -> None:
        """Of one micro-batch."""
        for weight, gradient in zip(call.weights, grads, strict=False):
            place = self._places.get(id(weight))
            if place is None or not isinstance(gradient, ms.Tensor):
                continue
            values = np.array(on_host(gradient))
            known = self._sums[place]
            self._sums[place] = values if known is None else known + values

    def fit(self) -> int:
        """The sums so far are those without noise: find the factors, forget the sums. Returns how many do not fit."""
        for place, ((_, gradient), base) in enumerate(zip(self._pairs, self._sums, strict=True)):
            given = on_host(gradient) if isinstance(gradient, ms.Tensor) else None
            if given is None or base is None or given.shape != base.shape:
                self._factors.leave_out()
                continue
            a, b = (array.astype(np.float64).reshape(-1) for array in (given, base))
            is_equal = bool(np.array_equal(given, base))
            self._factors.fit(place, dot=float(a @ b), given=float(a @ a), base=float(b @ b), is_equal=is_equal)
        self._factors.leave_out_flukes()
        self.forget()
        return self._factors.n_left_out

    def forget(self) -> None:
        """Before the next sample."""
        self._sums = [None] * len(self._pairs)

    def settle(self, *, is_clipped: bool) -> float | None:
        """A sample is complete. Its norm over that without noise; None: a part is not known."""
        square = sum(float(np.square(total.astype(np.float64)).sum()) for total in self._sums if total is not None)
        return self._factors.settle(square, is_clipped=is_clipped)

    def given(self) -> list[Any]:
        """One for each of the optimizer's parameters: of those that do not fit the run's own."""
        sample = dict(self._scaled())
        return [
            ms.Tensor(sample[place]).astype(gradient.dtype) if place in sample else gradient
            for place, (_, gradient) in enumerate(self._pairs)
        ]

    def rows(self, context: Context, reducer: MindSporeReducer, step: int) -> list[Reading]:
        """As `parameter_readings` gives those of the run."""
        found: list[tuple[tuple[str, ...], Any, Array, int]] = []
        for place, array in self._scaled():
            parameter, gradient = self._pairs[place]
            known = self._names.param_names(parameter) or (self._names.label(parameter),)
            if is_wanted(known, context.config):
                found.append((known, gradient, array, reducer.add(ms.Tensor(array))))
        summaries = reducer.drain()
        return [
            Reading(
                step=step, microbatch=max(0, context.clock.microbatch - 1), phase="grad", site=known[0], port="grad",
                order=context.clock.next_order(), dtype=dtype_name(gradient), shape=tuple(array.shape),
                summary=summaries[ticket], names=known if len(known) > 1 else (),
            )
            for known, gradient, array, ticket in found
        ]  # fmt: skip

    def _scaled(self) -> Iterator[tuple[int, Array]]:
        """(place, gradient as its optimizer would have been given it) of those that fit."""
        for place, factor in self._factors:
            total = self._sums[place]
            if total is not None:
                is_short = total.itemsize < 4 and factor != 1.0  # another rounding would be noise of ours
                wide = total.astype(np.float32) if is_short else total
                yield place, wide if factor == 1.0 else (wide * wide.dtype.type(factor))
