"""Whether the model itself talks to other ranks in its forward: then only all of them together can do a step again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypocenter.tap import collectives
from hypocenter.tap.collectives import Call, Listener
from hypocenter.tap.names import NameMap


class Communication(Listener):
    """Hears collectives until it is asked whether the model has communicated in its forward.

    Args:
        is_in_model: whether an outermost module, or an autograd function of the loop, is being called at this moment.
    """

    def __init__(self, names: NameMap, is_in_model: Callable[[], bool], fail: Callable[[str], None]) -> None:
        self._names, self._is_in_model, self._fail = names, is_in_model, fail
        self._seen = False
        self._unlisten: Callable[[], None] | None = None

    def attach(self) -> Callable[[], None]:
        """Start listening; returns the undo."""
        self._unlisten = collectives.listen(self, names=self._names, fail=self._fail)
        return self.stop

    def before(self, call: Call) -> None:
        """Note a collective in forward; one in backward may be a reduction of gradients, not part of a replay."""
        in_backward = torch._C._current_graph_task_id() != -1
        if not self._seen and len(call.ranks) > 1 and not in_backward and self._is_in_model():
            self._seen = True

    def seen(self) -> bool:
        """Return whether the model has communicated in its forward so far, and stop listening."""
        self.stop()
        return self._seen

    def stop(self) -> None:
        """Stop listening."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
