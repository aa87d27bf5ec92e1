"""What a replay shows is recorded too: module frames and every op of the traced step, marked `replay`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from hypocenter.config import Config
from hypocenter.nouns import Reading, Summary
from hypocenter.session.levels import UntracedReducer
from hypocenter.tap.clock import Clock
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.names import NameMap
from hypocenter.tap.nodes import Node
from hypocenter.tap.parameters import parameter_readings
from hypocenter.tap.storages import UNDEFINED
from hypocenter.tap.tape import Microbatch

MAX_ROWS = 100_000  # ops of one replay that get a row


class ReplayRows:
    """Collects rows while a replay is traced. Module hooks are set for the length of the replay only."""

    def __init__(self, config: Config, names: NameMap, warn: Callable[[str], None]) -> None:
        self._config, self._names, self._warn = config, names, warn
        self._reducer = UntracedReducer(config)
        self._clock = Clock()
        self._ops: list[tuple[Node, int, torch.dtype, tuple[int, ...], int, int, int]] = []
        self._modules: ModuleTap | None = None
        self._undo: Callable[[], None] | None = None

    def observe(self, microbatch: Microbatch) -> Callable[[Node, Sequence[torch.Tensor]], None]:
        """Start on a micro-batch; return a function to be told of each traced op."""
        self.stop()
        self._ops.clear()
        self._clock.recording, self._clock.microbatch = True, microbatch.number
        config = replace(self._config, sites=(), exclude=())
        self._modules = ModuleTap(self._names, UntracedReducer(config), self._clock, config, self._warn)
        self._undo = self._modules.attach()
        self._modules.enabled = True

        def observe(node: Node, outputs: Sequence[torch.Tensor]) -> None:
            if node.traced.op.split(".")[1] in UNDEFINED:
                return  # memory as it was found: nothing descends from it before it is overwritten
            for index, tensor in enumerate(outputs):
                if tensor.is_floating_point() and len(self._ops) < MAX_ROWS:
                    ticket = self._reducer.add(tensor)
                    if ticket is not None:
                        order = self._clock.next_order()
                        shape = tuple(tensor.shape)
                        self._ops.append((node, index, tensor.dtype, shape, ticket, microbatch.number, order))

        return observe

    def stop(self) -> None:
        """Take the module hooks off, as the traced replay is over (cures are replayed without them)."""
        if self._undo is not None and self._modules is not None:
            self._modules.enabled = False
            self._undo()
            self._undo = None

    def collect(self, step: int) -> list[Reading]:
        """Return the rows of the last replay, in execution order."""
        if self._modules is None:
            return []
        self.stop()
        number = self._clock.microbatch
        rows = self._modules.collect(step)
        rows += parameter_readings(
            self._names,
            (),
            UntracedReducer(self._config),
            step,
            clock=self._clock,
            config=replace(self._config, sites=()),
        )
        rows = [replace(row, replay=True, microbatch=number) for row in rows if row.phase != "grad"]
        self._modules = None
        summaries = self._reducer.drain()
        ops, self._ops = self._ops, []
        rows += [
            _op_reading(step, summaries[ticket], node, index, dtype, shape, number, order)
            for node, index, dtype, shape, ticket, number, order in ops
        ]
        return sorted(rows, key=lambda reading: reading.order)


def _op_reading(
    step: int,
    summary: Summary,
    node: Node,
    index: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    number: int,
    order: int,
) -> Reading:
    place = node.place
    return Reading(
        step=step,
        microbatch=number,
        phase=place.phase,
        site=place.site,
        port=f"grad_in[{index}]" if node.is_gradient else f"out[{index}]",
        order=order,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape,
        summary=summary,
        module=place.module,
        op=node.traced.op,
        source=place.source(),
        recompute=place.recompute,
        replay=True,
        literal_inf=bool(node.traced.bits) and not node.traced.real,
    )
