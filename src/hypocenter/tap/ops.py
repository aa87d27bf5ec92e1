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


class OpTap(TorchDispatchMode):
    """Notes every op's floating outputs. Views are not operations."""

    def __init__(
        self, context: OpContext, reducer: Reducer, clock: Clock, wanted: Callable[[str], bool] = lambda _: True
    ) -> None:
        super().__init__()
        self.context = context
        self._reducer = reducer
        self._clock = clock
        self._wanted = wanted
        self._rows: list[tuple[OpPlace, str, int, int, int, str, tuple[int, ...], int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self._note(func, 0, out, args)
        elif isinstance(out, (tuple, list)):
            for index, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    self._note(func, index, item, args)
        return out

    def _note(self, func: Any, index: int, out: torch.Tensor, args: Any) -> None:
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
                (place, name, index, ticket, self._clock.next_order(), dtype, tuple(out.shape), self._clock.microbatch)
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
                port=f"out[{index}]" if place.phase != "backward" else f"grad_in[{index}]",
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
            for place, name, index, ticket, order, dtype, shape, microbatch in rows
        ]
