"""A replay under the op trace, with names for what was there before any op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from hypocenter.optrace import NEGINF
from hypocenter.replay.engine import Replayed, Replayer
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.unseen import Watching, number_of
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.gains import Sized, SizeTracer, octave_of
from hypocenter.tap.names import NameMap
from hypocenter.tap.nodes import Node, nonfinite_bits
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import OpTracer

T = TypeVar("T", bound=OpTracer)
Observer = Callable[[Node, Sequence[torch.Tensor]], None]
Judge = Callable[[SizeTracer, Sized, Node], bool]


class Tracing:
    """Replays micro-batches under an op trace."""

    def __init__(self, replayer: Replayer, names: NameMap) -> None:
        self._replayer, self._names = replayer, names

    def run(self, microbatch: Microbatch, observe: Observer | None = None, **how: Any) -> tuple[OpTracer, Replayed]:
        """Forward, loss and backward; `how` as in `Replayer.run`."""
        tracer = self._tracer(microbatch, observe)
        parameters = [p for _, p in self._replayer.parameters(self._names)]
        return tracer, self._replayer.run(microbatch, parameters, mode=tracer, context=tracer.context, **how)

    def find_unseen(self, microbatch: Microbatch, node: Node, nodes: Sequence[Node], **how: Any) -> None:
        """Do it once more, to find the line that ran a kernel which the trace had to guess at; `how` as in `run`."""
        if node.unseen is None or node.unseen.after < 0 or not self._replayer.is_alone:
            return
        watching = self._tracer(microbatch, None, Watching)
        watching.after = number_of(nodes, node.unseen.after)
        parameters = [p for _, p in self._replayer.parameters(self._names)]
        done = self._replayer.run(microbatch, parameters, mode=watching, context=watching.context, **how)
        for value in (*done.values, *done.grads):  # what nobody has read before
            if value is not None:
                watching.edge_to(value)
        watching.settle(node)

    def run_modules(self, microbatch: Microbatch, observe: Observer | None) -> tuple[OpTracer, list[torch.Tensor]]:
        """Only the outermost module calls; what the last one returned."""
        tracer = self._tracer(microbatch, observe)
        return tracer, self._replayer.run_modules(microbatch, mode=tracer, context=tracer.context)

    def run_sized(
        self, microbatch: Microbatch, *, scale: float, judge: Judge | None = None
    ) -> tuple[SizeTracer, Replayed]:
        """With the size of what each operator gives.

        Args:
            scale: loss scale that the gradients carry.
            judge: see SizeTracer.

        Raises:
            ReplayImpossible: with the reason.
        """
        tracer = self._tracer(microbatch, None, SizeTracer, scale=scale, judge=judge)
        parameters = [p for _, p in self._replayer.parameters(self._names)]
        if why := why_no_room(parameters):
            raise ReplayImpossible(why)
        replayed = self._replayer.run(
            microbatch, parameters, mode=tracer, context=tracer.context, must_leave_no_trace=True
        )
        tracer.settle()
        for value in replayed.values:  # a loss is scaled by the program, in an operator that backward starts from
            root = tracer.sized.get(tracer.edge_to(value).producer)
            if root is not None:
                root.octaves = [octave - octave_of(scale) for octave in root.octaves]
        return tracer, replayed

    def _tracer(self, microbatch: Microbatch, observe: Observer | None, made_as: type[T] = OpTracer, **how: Any) -> T:
        known: dict[int, tuple[str, str]] = {}
        computed: set[int] = set()  # inputs whose infinities an operation of the program made of finite numbers
        for kind, things in (
            ("param", self._replayer.parameters(self._names)),
            ("buffer", self._names.buffers()),
            ("batch", self._replayer.named_inputs(microbatch)),
        ):
            for name, tensor in things:
                with contextlib.suppress(RuntimeError, NotImplementedError):
                    values = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
                    known.setdefault(values.untyped_storage()._cdata, (kind, name.removeprefix("batch")))
                    if kind == "batch" and nonfinite_bits(values) == NEGINF and not self._replayer.is_constant(tensor):
                        computed.add(values.untyped_storage()._cdata)

        def leaf(tensor: torch.Tensor) -> tuple[str, str]:
            try:
                return known.get(tensor.untyped_storage()._cdata, ("external", ""))
            except (RuntimeError, NotImplementedError):
                return "external", ""

        def observed(node: Node, outputs: Sequence[torch.Tensor]) -> None:
            self._replayer.deadline.check()  # a traced step may take a hundred times as long as it did in the run
            if observe is not None:
                observe(node, outputs)

        return made_as(OpContext(self._names.module_name), leaf, observe=observed, computed=computed, **how)
