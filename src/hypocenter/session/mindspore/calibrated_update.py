"""Parameters and optimizer state as another good run would have them: carried from one calibrated step to the next.

Each sample has a trajectory of its own, as in hypocenter.session.calibrated_update. MindSpore's optimizers keep all
their state in Parameters: for an update of the sample these hold its values, the optimizer works, what came out is
copied, and the run's own values are put back where they were, to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter.summary.reducers.mindspore_values import dtype_name, is_on_host

Values = dict[int, tuple[Any, NDArray[Any]]]
"""id of a Parameter -> itself, and values."""


class Trajectory:
    """The parameters of one sample. As the run's own until the first update."""

    def __init__(self) -> None:
        self._held: Values = {}
        self._next: Values = {}

    @property
    def n_bytes(self) -> int:
        """What all its copies occupy, those of the step to come included."""
        return sum(array.nbytes for held in (self._held, self._next) for _, array in held.values())

    @contextlib.contextmanager
    def in_place(self, also: Sequence[Any] = ()) -> Generator[None, None, None]:
        """The run's Parameters hold the sample's values inside this block, and their own again after it.

        Args:
            also: Parameters that may change in the block, and are to be put back too.
        """
        touched = {id(p): p for p in [*also, *(parameter for parameter, _ in self._held.values())]}
        own = [(parameter, copy_of(parameter)) for parameter in touched.values()]
        try:
            for parameter, array in self._held.values():
                _assign(parameter, array)
            yield
        finally:
            for parameter, array in own:
                _assign(parameter, array)

    @contextlib.contextmanager
    def updated(self, optimizer: Any, gradients: Sequence[Any]) -> Generator[None, None, None]:
        """The sample after an update with these gradients, inside the block. It counts once `go_on` is called."""
        held = list(optimizer.get_parameters())
        with self.in_place(also=held):
            optimizer(tuple(gradients))
            self._next = {id(parameter): (parameter, copy_of(parameter)) for parameter in held}
            yield

    def go_on(self) -> None:
        """The run has updated."""
        self._held |= self._next
        self._next = {}

    def stay(self) -> None:
        """The run has skipped its update."""
        self._next = {}

    def come_back(self) -> None:
        """To where the run is: steps in between were not seen."""
        self._held, self._next = {}, {}


def why_not(optimizer: Any) -> str:
    """Why no update of a sample can be made with this optimizer, or ''."""
    if not f"{type(optimizer).__module__}.".startswith("mindspore."):
        return f"{type(optimizer).__name__} may keep state of which only it knows"
    if any(dtype_name(p) == "bfloat16" and is_on_host(p) for p in _parameters(optimizer)):
        return "MindSpore cannot assign bfloat16 on a CPU"
    return ""


def copy_of(parameter: Any) -> NDArray[Any]:
    """Its values on the host."""
    return np.array(parameter.asnumpy(), order="C")


def _parameters(optimizer: Any) -> Iterable[Any]:
    return optimizer.get_parameters()


def _assign(parameter: Any, array: NDArray[Any]) -> None:
    with ms._no_grad():
        ms.ops.assign(parameter, ms.Tensor(array))
