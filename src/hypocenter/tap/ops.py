"""Level `ops`: a Summary per operator of a running step, forward and backward, with its source line. No host sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hypocenter.nouns import Reading, Summary
from hypocenter.tap.clock import Clock
from hypocenter.tap.dispatch import Mode, is_view, name_of
from hypocenter.tap.gradient_flow import GradientFlow
from hypocenter.tap.op_context import OpContext, OpPlace
from hypocenter.tap.op_tensors import read_by, tensors_among
from hypocenter.tap.operator_calls import OperatorCalls, is_silent
from hypocenter.tap.reducer import Reducer

MAX_ROWS = 200_000  # of one step
GROWS = frozenset(
    {"sum", "nansum", "cumsum", "mean", "nanmean", "norm", "linalg_vector_norm", "var", "var_mean", "std", "std_mean"}
    | {"pow", "square", "bmm", "baddbmm"}
)
"""Operators whose result grows with a length, or is a power: what goes in is read too, as ports `terms[i]`."""
TERMS = {"bmm": (0, 1), "baddbmm": (1, 2)}  # which arguments the terms are; of all others the first


class OpTap(Mode):
    """Notes every op's floating outputs, and the terms of reductions. Views are not operations.

    What backward computes has port `grad_in[i]` where it descends from the gradient, and `out[i]` where it is computed
    from values of forward alone. `flow` is to be told where a backward starts.
    """

    def __init__(
        self, context: OpContext, reducer: Reducer, clock: Clock, wanted: Callable[[str], bool] = lambda _: True
    ) -> None:
        super().__init__()
        self.context = context
        self._reducer = reducer
        self._clock = clock
        self._wanted = wanted
        self.calls: OperatorCalls | None = None  # notes the first micro-batch, where given
        self._rows: list[tuple[OpPlace, str, str, int, int, str, tuple[int, ...], int]] = []
        self.flow = GradientFlow()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        name = func.__name__.split(".")[0]
        is_gradient = True
        if self.flow.is_told and not is_view(func):
            is_gradient = self.flow.note(name, read_by(args, kwargs or {}), tensors_among(outputs))
        self._note_terms(func, name, args)
        calls = self.calls
        if calls is not None and not is_silent(func) and calls.is_first(self._clock.step, self._clock.microbatch):
            calls.note(func, args, kwargs, self.context.place(name_of(func)))
        for index, item in enumerate(outputs):
            if isinstance(item, torch.Tensor):
                self._note(func, f"out[{index}]", item, is_gradient=is_gradient)
        return out

    def _note_terms(self, func: Any, name: str, args: Any) -> None:
        if name in GROWS:
            for index, at in enumerate(TERMS.get(name, (0,))):
                if at < len(args) and isinstance(args[at], torch.Tensor):
                    self._note(func, f"terms[{index}]", args[at])

    def _note(self, func: Any, port: str, out: torch.Tensor, *, is_gradient: bool = False) -> None:
        if not (out.is_floating_point() or out.is_complex()) or len(self._rows) >= MAX_ROWS:
            return
        if is_silent(func):
            return
        place = self.context.place(name := name_of(func))
        if not self._wanted(place.site):
            return
        ticket = self._reducer.add(out)
        if ticket is not None:
            if is_gradient and place.phase == "backward":
                port = port.replace("out[", "grad_in[")
            dtype = str(out.dtype).removeprefix("torch.")
            self._rows.append(
                (place, name, port, ticket, self._clock.next_order(), dtype, tuple(out.shape), self._clock.microbatch)
            )

    def collect(self, step: int, *, replay: bool = False) -> list[Reading]:
        """Return the readings of the step; takes one device-to-host transfer."""
        summaries = self._reducer.drain()
        rows, self._rows = self._rows, []
        return [
            Reading(
                step=step,
                microbatch=microbatch,
                phase=place.phase,
                site=place.site,
                port=port,
                order=order,
                dtype=dtype,
                shape=shape,
                summary=summaries[ticket] if ticket < len(summaries) else Summary(),
                module=place.module,
                op=name,
                source=place.source(),
                recompute=place.recompute,
                replay=replay,
            )
            for place, name, port, ticket, order, dtype, shape, microbatch in rows
        ]
