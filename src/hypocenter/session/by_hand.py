"""Updates that no optimizer tells of: the program writes to its parameters itself, or its `step` is compiled code.

Such an update is seen by what it does: parameters that a backward gave gradients to have changed when the next
micro-batch begins. Nothing says beforehand that one is about to come, so the gradients are checked right after each
backward, while the parameters are still those that it computed with. As soon as the program makes an optimizer, all
this is off, until a step of it is seen to be traced into a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from hypocenter.session.parts import Parts
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.tape import version_of


class ByHand:
    """Stands in for the optimizer of a step in a program that has none."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, Any] = {}


class Steps(Protocol):
    """What is told where steps begin and end (the boundary)."""

    def before(self, optimizer: Any, scaled: None, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None: ...
    def act(self, optimizer: Any) -> None: ...
    def after(self, optimizer: Any, *, is_late: bool) -> None: ...
    def begin_step(self) -> None: ...
    def reopen(self, optimizer: Any) -> None: ...


class UpdatesByHand:
    """Finds updates that no optimizer makes, and tells the boundary of them."""

    def __init__(self, parts: Parts, boundary: Steps) -> None:
        self._parts, self._boundary = parts, boundary
        self._is_on: bool | None = None  # None: it is not known yet whether there is an optimizer
        self._optimizer = ByHand()
        self._before: list[tuple[torch.Tensor, int, int, torch.Tensor]] | None = None  # of the backward that is checked

    @property
    def is_on(self) -> bool:
        """Whether no optimizer tells of its updates. To be asked once there is something to update."""
        if self._parts.updates.is_compiled:
            return True
        if self._is_on is None:
            self._is_on = not self._parts.optimizers.all()
        return self._is_on

    def switch_off(self) -> None:
        """Look for updates by hand no more: an optimizer was made, and it will tell of its updates itself."""
        self._is_on = False
        if self._before is not None:
            self._before = None
            self._boundary.reopen(self._optimizer)
            self._parts.clock.forget(id(self._optimizer))

    def after_backward(
        self, *, keeps_graph: bool, given: Sequence[tuple[torch.Tensor, torch.Tensor]] | None = None
    ) -> None:
        """Check this backward's gradients, where nobody else does, and investigate the step if they are not finite.

        Args:
            given: (parameter, gradient) that the program asked for; None: they are in `.grad`.
            keeps_graph: another backward may go through the same graph, so what is on the tape is still needed.
        """
        named = self._parts.names.parameters()
        gradients = [(p, p.grad) for _, p in named if p.grad is not None] if given is None else given
        if not gradients:
            return
        self._optimizer.param_groups = [{"params": [p for p, _ in gradients]}]
        self._boundary.before(self._optimizer, None, gradients)
        self._boundary.act(self._optimizer)
        values = [local(p) for p, _ in gradients]
        held = [(p, v) for (p, _), v in zip(gradients, values, strict=True) if v is not None]
        before = norms([v for _, v in held])
        self._before = [(p, version_of(p), v.data_ptr(), norm) for (p, v), norm in zip(held, before, strict=True)]
        if not keeps_graph:
            self._boundary.begin_step()  # what is on the tape has been found to be fine, or has been looked into

    def before_next(self) -> None:
        """Note the update if the parameters have changed since the last backward: the next micro-batch begins."""
        if self._before is None:
            return
        before, self._before = self._before, None
        if _have_changed(before):
            self._boundary.after(self._optimizer, is_late=True)
        else:
            self._boundary.reopen(self._optimizer)

    def at_end(self) -> None:
        """Count what was checked last as the last step: the program ends."""
        if self._before is not None:
            self._before = None
            self._boundary.after(self._optimizer, is_late=True)


def _have_changed(before: list[tuple[torch.Tensor, int, int, torch.Tensor]]) -> bool:
    """Return whether parameters have changed: by version or address, or, after a write through `.data`, by norm."""
    values = [local(p) for p, _, _, _ in before]
    for (p, version, address, _), value in zip(before, values, strict=True):
        if version_of(p) != version or value is None or value.data_ptr() != address:
            return True
    now = norms([v for v in values if v is not None])
    host = to_host([*now, *(norm for _, _, _, norm in before)])
    return any(a != b for a, b in zip(host[: len(now)], host[len(now) :], strict=True))  # NaN: taken for a change
