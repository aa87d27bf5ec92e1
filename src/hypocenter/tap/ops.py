"""Level `ops`: a Summary per operator of a running step, forward and backward, with its source line. No host sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.nouns import Reading, Summary
from hypocenter.tap.clock import Clock
from hypocenter.tap.op_context import OpContext, OpPlace
from hypocenter.tap.reducer import Reducer

MAX_ROWS = 200_000  # of one step
GROWS = frozenset(
    {"sum", "nansum", "cumsum", "mean", "nanmean", "norm", "linalg_vector_norm", "var", "var_mean", "std", "std_mean"}
    | {"pow", "square", "bmm", "baddbmm"}
)
"""Operators whose result grows with a length, or is a power: what goes in is read too, as ports `terms[i]`."""
TERMS = {"bmm": (0, 1), "baddbmm": (1, 2)}  # which arguments the terms are; of all others the first


class OpTap(TorchDispatchMode):
    """Notes every op's floating outputs, and the terms of reductions. Views are not operations."""

    def __init__(
        self, context: OpContext, reducer: Reducer, clock: Clock, wanted: Callable[[str], bool] = lambda _: True
    ) -> None:
        super().__init__()
        self.context = context
        self._reducer = reducer
        self._clock = clock
        self._wanted = wanted
        self._rows: list[tuple[OpPlace, str, str, int, int, str, tuple[int, ...], int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._note_terms(func, args)
        if isinstance(out, torch.Tensor):
            self._note(func, "out[0]", out)
        elif isinstance(out, (tuple, list)):
            for index, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    self._note(func, f"out[{index}]", item)
        return out

    def _note_terms(self, func: Any, args: Any) -> None:
        name = func.__name__.split(".")[0]
        if name in GROWS:
            for index, at in enumerate(TERMS.get(name, (0,))):
                if at < len(args) and isinstance(args[at], torch.Tensor):
                    self._note(func, f"terms[{index}]", args[at])

    def _note(self, func: Any, port: str, out: torch.Tensor) -> None:
        if not (out.is_floating_point() or out.is_complex()) or len(self._rows) >= MAX_ROWS:
            return
        if func.is_view or "empty" in func.__name__:
            return
        place = self.context.place(name := str(func))
        if not self._wanted(place.site):
            return
        ticket = self._reducer.add(out)
        if ticket is not None:
            dtype = str(out.dtype).removeprefix("torch.")
            self._rows.append(
                (place, name, port, ticket, self._clock.next_order(), dtype, tuple(out.shape), self._clock.microbatch)
            )

    def collect(self, step: int, *, replay: bool = False) -> list[Reading]:
        """The readings of the step; one device-to-host transfer."""
        summaries = self._reducer.drain()
        rows, self._rows = self._rows, []
        return [
            Reading(
                step=step,
                microbatch=microbatch,
                phase=place.phase,
                site=place.site,
                port=port if place.phase != "backward" else port.replace("out[", "grad_in["),
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
