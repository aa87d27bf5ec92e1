"""A replay under the op trace, with names for what was there before any op."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.optrace import NEGINF, UNSEEN, UNWRITTEN
from hypocenter.replay.engine import Replayed, Replayer
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.python_state import is_installed
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.gains import Sized, SizeTracer, octave_of
from hypocenter.tap.healthy_sizes import HealthySizes
from hypocenter.tap.names import NameMap
from hypocenter.tap.nodes import Node, nonfinite_bits
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.source import is_library, user_frame
from hypocenter.tap.storages import UNDEFINED
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import OpTracer

T = TypeVar("T", bound=OpTracer)
Observer = Callable[[Node, Sequence[torch.Tensor]], None]
Judge = Callable[[SizeTracer, Sized, Node], bool]


class Tracing:
    """Replay micro-batches under an op trace."""

    def __init__(self, replayer: Replayer, names: NameMap) -> None:
        self._replayer, self._names = replayer, names

    def run(self, microbatch: Microbatch, observe: Observer | None = None, **how: Any) -> tuple[OpTracer, Replayed]:
        """Run forward, loss and backward under a trace; `how` as in `Replayer.run`."""
        tracer = self._tracer(microbatch, observe)
        parameters = [p for _, p in self._replayer.parameters(self._names)]
        return tracer, self._replayer.run(microbatch, parameters, mode=tracer, context=tracer.context, **how)

    def find_unseen(self, microbatch: Microbatch, node: Node, nodes: Sequence[Node], **how: Any) -> None:
        """Replay once more, to find the line that ran a kernel which the trace had to guess at; `how` as in `run`."""
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
        """Run only the outermost module calls under a trace; return it, and what the last one returned."""
        tracer = self._tracer(microbatch, observe)
        return tracer, self._replayer.run_modules(microbatch, mode=tracer, context=tracer.context)

    def run_sized(self, microbatch: Microbatch, *, scale: float, judge: Judge) -> tuple[SizeTracer, Replayed]:
        """Run with a trace of the size of what each operator gives.

        Args:
            scale: loss scale that the gradients carry.
            judge: see SizeTracer.

        Raises:
            ReplayImpossible: with the reason.
        """
        tracer = self._tracer(microbatch, None, SizeTracer, scale=scale, judge=judge)
        return tracer, self._sized(microbatch, tracer, tracer.context, scale)

    def healthy_sizes(self, microbatch: Microbatch, *, scale: float) -> dict[int, Sized]:
        """Run a micro-batch of a healthy step, and return the size of what each operator gives, by producer.

        Args:
            scale: loss scale that the gradients carry.

        Raises:
            ReplayImpossible: with the reason.
        """
        context = OpContext(self._names.module_name, knows_callers=False)
        leaf, check = _namer(self._known(microbatch)), self._replayer.deadline.check
        mode = HealthySizes(context, leaf, scale=scale, check=check)
        self._sized(microbatch, mode, context, scale)
        microbatch.makes_room = mode.n_rooms > 0
        return mode.sizes.sized

    def _sized(
        self, microbatch: Microbatch, mode: SizeTracer | HealthySizes, context: OpContext, scale: float
    ) -> Replayed:
        parameters = [p for _, p in self._replayer.parameters(self._names)]
        if why := why_no_room(parameters):
            raise ReplayImpossible(why)
        replayed = self._replayer.run(microbatch, parameters, mode=mode, context=context, must_leave_no_trace=True)
        mode.sizes.settle()
        for value in replayed.values:  # a loss is scaled by the program, in an operator that backward starts from
            root = mode.sizes.sized.get(mode.producer_of(value))
            if root is not None:
                root.octaves = [octave - octave_of(scale) for octave in root.octaves]
        return replayed

    def _tracer(self, microbatch: Microbatch, observe: Observer | None, made_as: type[T] = OpTracer, **how: Any) -> T:
        computed: set[int] = set()  # inputs whose infinities an operation of the program made of finite numbers
        for _, tensor in self._replayer.named_inputs(microbatch):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                values = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
                if nonfinite_bits(values) == NEGINF and not self._replayer.is_constant(tensor):
                    computed.add(values.untyped_storage()._cdata)

        def observed(node: Node, outputs: Sequence[torch.Tensor]) -> None:
            self._replayer.deadline.check()  # a traced step may take a hundred times as long as it did in the run
            if observe is not None:
                observe(node, outputs)

        context, leaf = OpContext(self._names.module_name), _namer(self._known(microbatch))
        return made_as(context, leaf, observe=observed, computed=computed, **how)

    def _known(self, microbatch: Microbatch) -> dict[int, tuple[str, str]]:
        """Return kind and name of what is there before any operator, by storage."""
        known: dict[int, tuple[str, str]] = {}
        for kind, things in (
            ("param", self._replayer.parameters(self._names)),
            ("buffer", self._names.buffers()),
            ("batch", self._replayer.named_inputs(microbatch)),
        ):
            for name, tensor in things:
                with contextlib.suppress(RuntimeError, NotImplementedError):
                    values = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
                    known.setdefault(values.untyped_storage()._cdata, (kind, name.removeprefix("batch")))
        return known


def _namer(known: Mapping[int, tuple[str, str]]) -> Callable[[torch.Tensor], tuple[str, str]]:
    def leaf(tensor: torch.Tensor) -> tuple[str, str]:
        try:
            return known.get(tensor.untyped_storage()._cdata, ("external", ""))
        except (RuntimeError, NotImplementedError):
            return "external", ""

    return leaf


# What is made room for is zero in that replay. If the bad values do not come, nothing had written there at all.
class Watching(OpTracer):
    """Trace as before, and follow the lines of the program from one op on until what that op gave is bad."""

    after = -1  # number of the op, among those that were traced

    def restart(self) -> None:
        """Forget what was found: the replay starts over."""
        super().restart()
        self._n, self._lines, self.has_come = 0, None, False

    _n = 0
    _lines: _Lines | None = None
    has_come = False  # the bad values
    site: tuple[str, str] | None = None  # the module that was being called then, its name and class

    def after_op(self, base: str, outputs: Sequence[torch.Tensor]) -> None:
        """Begin to follow lines after the op that made room, or wrote before."""
        if base in UNDEFINED and base != "resize_":
            for tensor in outputs:
                tensor.zero_()
        self._n += 1
        if self._n - 1 == self.after:
            self._lines = _Lines(outputs, self._note_site)
            self._lines.follow(sys._getframe(1))

    def met_unseen(self, tensor: torch.Tensor) -> None:
        """Stop following lines if this bad tensor is what was followed."""
        if self._lines is not None and self._lines.is_of(tensor):
            self.has_come = True
            self._lines.stop()

    def _note_site(self) -> None:
        self.site = self.context.called

    def __exit__(self, *raised: Any) -> Any:
        if self._lines is not None:
            self._lines.stop()
        return super().__exit__(*raised)

    def settle(self, node: Node) -> None:
        """Write into a node of an earlier trace what was found."""
        if not self.has_come:
            node.traced = replace(node.traced, op=UNWRITTEN)
        elif self._lines is not None and self._lines.found is not None:
            code, line = self._lines.found
            site, module = self.site or (node.place.site, node.place.module)
            node.place = replace(node.place, code=code, line=line, site=site, module=module)


def number_of(nodes: Sequence[Node], index: int) -> int:
    """Return an op's number among those that were traced."""
    return sum(node.traced.op != UNSEEN for node in nodes[:index])


class _Lines:
    """Follow the lines of the user's code, as they run in this thread.

    Attributes:
        found: code and line that had just run when one of the tensors was not finite any more: in the function that
            wrote them before, where that is still running, else in the user's innermost one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], on_found: Any) -> None:
        self._tensors = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        self._on_found = on_found
        self._last: tuple[CodeType, int] | None = None
        self._home: FrameType | None = None
        self._line_at_home = 0
        self._before: Any = None
        self._frames: list[tuple[FrameType, Any]] = []
        self._is_on = False
        self.found: tuple[CodeType, int] | None = None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Return whether it shares memory with one of the tensors."""
        return any(t.untyped_storage()._cdata == tensor.untyped_storage()._cdata for t in self._tensors)

    def follow(self, frame: FrameType) -> None:
        """Follow lines from here on."""
        inner = user_frame(frame)
        if inner is None or self._is_bad():
            return
        self._home, self._line_at_home, self._is_on = inner, inner.f_lineno, True
        outer: FrameType | None = inner
        while outer is not None:
            if not is_library(outer.f_code.co_filename):
                self._frames.append((outer, outer.f_trace))
                outer.f_trace = self._line
            outer = outer.f_back
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def stop(self) -> None:
        """Stop following; whoever followed lines before goes on."""
        if self._is_on:
            self._is_on = False
            sys.settrace(self._before)
            for frame, before in self._frames:
                frame.f_trace = before
            self._frames.clear()
        self._home = None
        self._tensors = self._tensors if self.found is None else []

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return None if not self._is_on or is_library(frame.f_code.co_filename) else self._line(frame, event, arg)

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._is_on:
            return None
        if self._is_bad():
            self.found, self._is_on = self._place(frame), False
            self._on_found()
            sys.settrace(self._before)
            return None
        if event == "line" and frame is self._home:
            self._line_at_home = frame.f_lineno
        elif event == "line" and not is_installed(frame.f_code.co_filename):
            self._last = frame.f_code, frame.f_lineno
        return self._line

    def _place(self, frame: FrameType | None) -> tuple[CodeType, int] | None:
        home = self._home
        if home is not None and frame is home:  # on its next line already
            return home.f_code, self._line_at_home
        while frame is not None and frame is not home:
            frame = frame.f_back
        return self._last if frame is None else (frame.f_code, frame.f_lineno)

    def _is_bad(self) -> bool:
        with _disable_current_modes(), torch.no_grad():
            return any(nonfinite_bits(tensor) for tensor in self._tensors)
