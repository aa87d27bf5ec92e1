"""When a step cannot be replayed, the next ones are traced while they run, until one fails or three were fine."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypocenter.tap.live import LiveMode
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer

MAX_STEPS = 3  # a traced step costs several plain ones


class LiveTrace:
    """A trace of the ops of the run itself. Off until `arm`."""

    def __init__(self, names: NameMap, warn: Callable[[str], None]) -> None:
        self._names, self._warn = names, warn
        self._steps_left = 0
        self._live: LiveMode | None = None
        self._detach: Callable[[], None] | None = None
        self.tracer: OpTracer | None = None

    def arm(self, why: str) -> None:
        """Trace the coming steps while they run, as one could not be replayed for this reason."""
        self._warn(f"the step cannot be replayed ({why}): tracing the next {MAX_STEPS} steps while they run")
        self._steps_left = MAX_STEPS

    def begin_microbatch(self) -> None:
        """Begin to trace, if armed: an outermost training call begins."""
        if not self._steps_left:
            return
        if self.tracer is None:
            context = OpContext(self._names.module_name)
            self.tracer = OpTracer(context, self._leaf)
            self._live = LiveMode(self.tracer, self._warn)
            self._detach = context.attach()
        if self._live is not None:
            self._live.enter()

    def end_microbatch(self) -> None:
        """Stop tracing for now: the micro-batch's backward is over."""
        if self._live is not None:
            self._live.leave()

    def end_step(self) -> None:
        """Drop the trace of this step, whose update is done; the next step is traced anew, or not at all."""
        if self.tracer is None:
            return
        self.end_microbatch()
        if self._detach is not None:
            self._detach()
        self.tracer = self._live = self._detach = None
        self._steps_left = max(0, self._steps_left - 1)  # 0 already: it was disarmed in this step

    def disarm(self) -> None:
        """Trace no further steps: what was looked for has been found."""
        self._steps_left = 0

    def _leaf(self, tensor: torch.Tensor) -> tuple[str, str]:
        for kind, name in (("param", self._names.param_name(tensor)), ("buffer", self._names.buffer_name(tensor))):
            if name is not None:
                return kind, name
        return "external", ""
