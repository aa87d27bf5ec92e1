"""What the program's own code receives from other ranks, outside of modules and of backward.

Collectives are no operations that a replay could do again: their outputs are values from outside.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypocenter.tap import collectives
from hypocenter.tap.collectives import Call, Listener
from hypocenter.tap.names import NameMap
from hypocenter.tap.roots import RootTap


class Received(Listener):
    """Tells the tapes what a collective is about to write to.

    Args:
        roots: whose tapes note the program's own code.
    """

    def __init__(self, roots: RootTap, names: NameMap, fail: Callable[[str], None]) -> None:
        self._roots, self._names, self._fail = roots, names, fail

    def attach(self) -> Callable[[], None]:
        """Start listening; returns the undo."""
        return collectives.listen(self, names=self._names, fail=self._fail)

    def before(self, call: Call) -> None:
        """Take the outputs for values from outside, unless a module's call is done again as a whole."""
        roots = self._roots
        if not call.outputs or roots.paused or roots.is_inside or torch._C._current_graph_task_id() != -1:
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():  # copying is no operation of the program
            for tape in (roots.tape, roots.prelude):
                tape.before_receipt(call.outputs)
