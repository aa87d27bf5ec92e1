"""Steps that a device replays from a captured graph: no Python runs in them, so what can be seen from outside is.

While a graph is captured nothing is done but to note what goes into it: the loss that backward starts from, and the
optimizer that steps. Both keep their memory, into which each replay writes. After the 1st, 2nd, 4th, ... replay, and
every LATER-th, these losses and the parameters are read, in one transfer.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from hypocenter.nouns import StepRecord
from hypocenter.session.boundary import Boundary
from hypocenter.session.check import scalar_reading
from hypocenter.session.learning_rate import learning_rate
from hypocenter.session.parts import Parts
from hypocenter.session.sentinel import Started
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.weakly import Ref

LATER = 128  # replays: a transfer waits for all that is queued
MAX_LOSSES = 64
_GRAPHS = (("cuda", "CUDAGraph"), ("npu", "NPUGraph"), ("xpu", "XPUGraph"))


class GraphReplays:
    """Counts replays as steps once an optimizer's step has been captured.

    Args:
        parts: of the session.
        boundary: writes rows down.
    """

    def __init__(self, parts: Parts, boundary: Boundary) -> None:
        self._parts, self._boundary = parts, boundary
        self._losses: list[torch.Tensor] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._undo: list[Callable[[], None]] = []
        self._n_replays = self._n_read = 0
        self._is_bad = False  # and told so

    def note(self, event: str, given: tuple[Any, ...]) -> None:
        """Note the losses and optimizers that go into a graph that is being captured. Launches nothing."""
        self._listen()
        if event == "before_backward":
            roots = [root for root in given[0] if isinstance(root, torch.Tensor) and root.numel() == 1]
            self._losses += [root.detach() for root in roots[: MAX_LOSSES - len(self._losses)]]
        elif event in ("before_update", "before_scaled_step"):
            optimizer = given[0] if event == "before_update" else given[0].optimizer
            if all(ref() is not optimizer for ref in self._optimizers):
                self._optimizers.append(Ref(optimizer))

    def _listen(self) -> None:
        if self._undo:
            return
        for kind, name in _GRAPHS:
            graph = getattr(vars(torch).get(kind), name, None)
            if graph is not None:
                self._undo.append(hear(graph, "replay", self._begin))

    def at_end(self) -> None:
        """Read what the last replays left: the session is over, and the device has done its work."""
        try:
            self._read()
        except Exception as error:
            self._parts.warn(f"what the last replays of a graph left is not known: {error!r}")

    def stop(self) -> None:
        """Stop listening to replays."""
        while self._undo:
            self._undo.pop()()

    def _begin(self, *_: Any) -> Callable[[Any], None] | None:
        if self._parts.roots.paused:
            return None
        return lambda result: None if result is RAISED else self._replayed()

    def _replayed(self) -> None:
        try:
            if not self._optimizers:
                self._parts.warn("what a graph replays runs no Python: nothing inside it is seen")
                return
            self._parts.warn(
                "whole steps are replayed from a graph and run no Python: their gradients are not seen; their losses "
                "and parameters are looked at now and then"
            )
            self._n_replays += 1
            if self._n_replays & (self._n_replays - 1) == 0 or self._n_replays % LATER == 0:
                self._read()
        except Exception as error:
            self.stop()
            self._parts.warn(f"replays of graphs are not followed any more: {error!r}")

    def _read(self) -> None:
        """Check and write what the last replay left, unless that has been done. Waits for the device."""
        n_new, self._n_read = self._n_replays - self._n_read, self._n_replays
        optimizers = [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]
        if not n_new or not optimizers:
            return
        parts, optimizer, step = self._parts, optimizers[0], 0
        for _ in range(n_new):  # each was a step
            step = parts.clock.begin_update(id(optimizer))
            parts.clock.end_update()
        held = [p for o in optimizers for group in o.param_groups for p in group["params"] if local(p) is not None]
        values = [v for p in held if (v := local(p)) is not None]
        with torch.no_grad():
            host = to_host([*(loss.reshape(()) for loss in self._losses), *norms(values)])
        losses = host[: len(self._losses)]
        bad = [p for p, norm in zip(held, host[len(losses) :], strict=True) if not math.isfinite(norm)]
        suspects = Started(bad, [math.nan] * len(bad), is_on_host=True)
        finding = self._told_of(parts.sentinel.bad_parameters(suspects), optimizer, step)
        order = parts.clock.next_order
        self._boundary.rows += [scalar_reading("loss", "loss", v, step, order(), i) for i, v in enumerate(losses)]
        mean = sum(losses) / len(losses) if losses else None
        self._boundary.flush(
            StepRecord(step=step, n_microbatches=len(losses), loss=mean, lr=learning_rate(optimizer), finding=finding)
        )

    def _told_of(self, bad: list[torch.Tensor], optimizer: Any, step: int) -> str:
        if not bad or self._is_bad:
            return ""
        self._is_bad = True
        labels = [label for p in bad for label in self._parts.sentinel.labels_of_bad(p)]
        note = "it was replayed from a graph, and may have been an earlier one; its gradients were not seen"
        rank = self._parts.rank()[0]
        return self._parts.failures.parameter_broke(bad, optimizer, step, rank, labels, must_prove=False, note=note)
