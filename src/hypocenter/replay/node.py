"""What a trace holds: operators as they ran, and tensors that were there before any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hypocenter.optrace import TracedOp
from hypocenter.replay.host_values import Held
from hypocenter.replay.place import Place


@dataclass(slots=True, kw_only=True)
class Node:
    """One op as it ran, with what adjudication needs of it (only where values stopped being finite)."""

    traced: TracedOp
    place: Place
    func: Callable[..., Any] | None = None  # runs it again: func(*args)
    args: Any = None  # as they were before it ran
    names: tuple[str, ...] = ()  # of its arguments
    outputs: tuple[Held, ...] = ()  # floating ones
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    scalars: dict[str, Any] = field(default_factory=dict[str, Any])
    live: Any = None  # in forward: the arguments themselves, to take the operator's gradient
    upstream: int | None = None  # in backward: which of its tensors is the gradient that came in

    @property
    def bad_output(self) -> Held | None:
        """The first output that is not finite; None if all are."""
        return next((out for out in self.outputs if not bool(np.isfinite(out.array).all())), None)


@dataclass(slots=True, kw_only=True)
class Leaf:
    """A tensor that was there before any traced op."""

    kind: str  # param, buffer, batch, external
    name: str
    values: Held | None = None  # only if they are not finite
    bits: int = 0
