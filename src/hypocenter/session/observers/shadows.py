"""Averages of the weights that are no module: dicts of clones by name, lists of clones in the order of parameters."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypocenter.session.observer import Context
from hypocenter.tap.gradients import PLAIN_TYPES

_FEWEST = 2  # tensors
_OURS = 3  # references to what we hold ourselves: of the Held, and while it is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A dict or list of the program's: it may hold other tensors later, or be gone."""

    values: Any

    def at(self, key: Any) -> Callable[[], Tensor | None]:
        """Return a function that gives the tensor that is there when it is called, or None."""

        def now() -> Tensor | None:
            if sys.getrefcount(self.values) <= _OURS - 1:
                return None
            try:
                value = self.values[key]
            except (KeyError, IndexError):
                return None
            return value if isinstance(value, Tensor) else None

        return now


Shadow = tuple[Tensor, Callable[[], Tensor | None]]
"""A trained parameter, and what gives its clone."""


def shadows(context: Context, trained: Sequence[Tensor]) -> Iterator[tuple[str, Mapping[str, Shadow]]]:
    """Yield whatever Python holds that has a clone of each trained parameter: its kind, and the pairs by name.

    Args:
        trained: what an optimizer updates.
    """
    ids = {id(p) for p in trained}
    named = {name: p for name, p in context.names.parameters() if id(p) in ids}
    if len(named) < _FEWEST:
        return
    first, shapes = next(iter(named)), [p.shape for p in trained]
    for each in gc.get_objects():
        if type(each) is dict and len(each) >= len(named) and first in each:
            held = Held(values=each)
            if all(_is_clone(each.get(name), p) for name, p in named.items()):
                yield "dict", {name: (p, held.at(name)) for name, p in named.items()}
        elif type(each) is list and len(each) == len(trained) and _is_clone(each[0], trained[0]):
            held = Held(values=each)
            if [getattr(one, "shape", None) for one in each] == shapes:
                yield "list", {context.label(p): (p, held.at(i)) for i, p in enumerate(trained)}


def _is_clone(value: Any, parameter: Tensor) -> bool:
    return (
        type(value) in PLAIN_TYPES  # a compiler's stand-ins have no memory
        and value is not parameter
        and value.layout is torch.strided  # a sparse one has no memory of its own
        and value.shape == parameter.shape
        and value.is_floating_point()
        and not value.requires_grad
        and value.device == parameter.device
        and value.data_ptr() != parameter.data_ptr()
    )
