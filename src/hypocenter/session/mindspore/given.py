"""The law "given" in MindSpore: see hypocenter.session.observers.given.

`Tensor.from_numpy` shares its memory with the array. What forward itself does to its inputs is no fault as long as that
is done before they are used: values are kept when forward is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter.nouns import Reading, replace
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.host import address
from hypocenter.session.host_arrays import strided
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.observers import given
from hypocenter.session.observers.given import ELEMENTS
from hypocenter.tap.mindspore.gradients import dtype_name, host
from hypocenter.tap.mindspore.tape import GradCall


@dataclass(frozen=True, slots=True)
class _Input:
    """An argument of a micro-batch, and some of its values."""

    call: GradCall
    name: str
    tensor: Any
    values: NDArray[Any]

    def changed(self) -> NDArray[np.bool_]:
        """Return which of the values are others now; a NaN that stays is no change."""
        now = strided(host(self.tensor), ELEMENTS)
        return (self.values != now) & ((self.values == self.values) | (now == now))


class Given(given.Given[Context]):
    """Keeps values of the arguments of differentiated functions, on the CPU: no other device shares their memory."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        can_be = ms.get_context("device_target") == "CPU" and hasattr(ms, "saved_tensors_hooks")  # MindSpore 2.10
        self._can_be = self._is_due_now = can_be
        self._replayer = Replayer(context.names, context.paused)
        self._given: list[_Input] = []

    def look(self, *, is_due: bool) -> None:
        """Look at each micro-batch of the step, or at none."""
        self._is_due_now = is_due and self._can_be

    def forward_done(self, call: GradCall) -> None:
        """Keep some values of each argument."""
        self._given = []
        if not self._is_due_now or call.is_dropped or not call.has_value:
            return
        for name, tensor in self._replayer.named_inputs(call):
            if not isinstance(tensor, ms.Parameter) and tensor.size and not dtype_name(tensor).startswith("complex"):
                values = np.array(strided(host(tensor), ELEMENTS))
                self._given.append(_Input(call, f"batch{name}" if name[0] == "[" else name, tensor, values))

    def end_microbatch(self, call: GradCall, gradients: Sequence[Any]) -> None:
        """Compare them with what is there now."""
        held, self._given = self._given, []
        self.changed += [each for each in held if each.call is call and each.changed().any()]

    def is_needed(self, changed: _Input) -> bool:
        """Return whether memory that has changed is among what a forward saves for its backward."""
        tensor, is_saved = changed.tensor, False
        by, size = -(-tensor.size // ELEMENTS), int(tensor.itemsize)
        places = [address(tensor) + int(number) * by * size for number in np.flatnonzero(changed.changed())]

        def pack(saved: Any) -> Any:
            nonlocal is_saved
            first = address(saved)
            is_saved = is_saved or any(first <= place < first + int(saved.nbytes) for place in places)
            return ms.Tensor(saved)  # a reference to the same object would never be let go of

        with self.context.audits.spending(), contextlib.suppress(ReplayImpossible, RuntimeError):
            hooks = ms.saved_tensors_hooks(pack, lambda saved: saved)
            self._replayer.run(changed.call, around=hooks, must_leave_no_trace=True)
        return is_saved

    def row(self, changed: _Input, step: int) -> Reading:
        """Name the function that was given it."""
        fn, where = changed.call.fn, changed.changed()
        called = str(getattr(fn, "__name__", type(fn).__name__))
        row = self.told(changed.name, step, int(where.sum()), where.size, called)
        dtype, shape = dtype_name(changed.tensor), tuple(changed.tensor.shape)
        seen = ("they were kept when forward was over",)
        return replace(row, dtype=dtype, shape=shape, op=str(changed.call.number), names=seen)
