"""`--gradients-from RUN` in a training cell that is compiled as a whole: a cell in front of its optimizer.

It holds RUN's gradients as Parameters, which are set before each call; a flag, also one, tells whether the graph uses
them or its own: at a step of which RUN has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn, ops  # pyright: ignore[reportMissingImports]

from hypocenter.session.mindspore.imposed.tensors import put
from hypocenter.tap.mindspore.names import children, is_optimizer


class Fed(nn.Cell):  # pyright: ignore[reportUntypedBaseClass]
    """A cell in the place of an optimizer, which passes gradients to it: the program's, or those it is fed."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.given = ms.ParameterTuple([_holder(place, each) for place, each in enumerate(optimizer.parameters)])
        self.is_fed = ms.Parameter(ms.Tensor(False), name="hypocenter.is_fed", requires_grad=False)

    def construct(self, gradients: Any) -> Any:
        """Update with the gradients that were fed, or with the graph's own; compiled into the training cell."""
        used = ()
        for place in range(len(self.given)):
            used = used + (ops.where(self.is_fed, self.given[place], gradients[place]),)  # noqa: RUF005
        return self.optimizer(used)

    def feed(self, gradients: Sequence[Any] | None) -> None:
        """Set the gradients that the next call is to use; None: its own."""
        put(self.is_fed, ms.Tensor(gradients is not None))
        for parameter, gradient in zip(self.given, gradients or (), strict=False):
            put(parameter, gradient)


def put_in_front(cell: Any) -> bool:
    """Put a Fed in front of each optimizer of a training cell; return False if the cell is compiled already."""
    places = list(_places(cell))
    if places and getattr(cell, "compile_cache", None):
        return False
    for holder, name, optimizer in places:
        setattr(holder, name, Fed(optimizer))
    return True


def fed_in(cell: Any) -> list[Fed]:
    """Return the Feds of a training cell."""
    return [each for _, each in cell.cells_and_names() if isinstance(each, Fed)]


def _places(cell: Any) -> Iterator[tuple[Any, str, Any]]:
    for name, child in list(children(cell).items()):
        if child is None or isinstance(child, Fed):
            continue
        if is_optimizer(child):
            yield cell, name, child
        else:
            yield from _places(child)


def _holder(place: int, parameter: Any) -> Any:
    zeros = ops.zeros(parameter.shape, parameter.dtype)
    return ms.Parameter(zeros, name=f"hypocenter.given.{place}", requires_grad=False)
