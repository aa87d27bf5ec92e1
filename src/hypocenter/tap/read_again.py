"""Arguments of the user's call that we have read, and that can be read again: an iterator can be read once only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge


class Rebound:
    """Is called at the end of a call (see own_frame), and holds the arguments that the call is made with."""

    def __init__(self, end: Callable[[Any], None], *rebound: Any) -> None:
        self._end, self.rebound = end, rebound

    def __call__(self, result: Any) -> None:
        """Tell of the result: the call is over."""
        self._end(result)


def read(given: Any) -> tuple[list[Any], Any]:
    """Return one or several tensors (or edges of the graph) as a list, and what to hand on in their place.

    A generator stays one, for torch warns of one that is empty.

    Raises:
        TypeError: there is nothing to read.
    """
    if isinstance(given, (torch.Tensor, GradientEdge)):
        return [given], given
    listed = list(given)
    if isinstance(given, GeneratorType):
        return listed, (each for each in listed)
    return listed, iter(listed) if isinstance(given, Iterator) else given


def like_decorated(*args: Any, **kwargs: Any) -> None:
    """Stand for the parameters of torch's clipping functions, inside their decorator."""


def read_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Rebound | None]:
    """Return the argument `parameters` of such a function, and what hands it on; [] and None if it cannot be read."""
    try:
        parameters, again = read(args[0] if args else kwargs["parameters"])
    except (TypeError, KeyError):
        return [], None
    return parameters, Rebound(_nothing, (again, *args[1:]), kwargs) if args else _by_name(kwargs, again)


def _by_name(kwargs: dict[str, Any], parameters: Any) -> Rebound:
    return Rebound(_nothing, (), kwargs | {"parameters": parameters})


def _nothing(_: Any) -> None:
    """Do nothing at the end."""
