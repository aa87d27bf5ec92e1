"""Elements of each of many parameters on the host, in one operation: what it costs for each is no Python.

All elements of what is small, a few of each of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hypocenter.session.framework import WHOLE, Peek, stride_of
from hypocenter.tap.gradients import PLAIN_TYPES
from hypocenter.tap.host_memory import is_there
from hypocenter.tap.weakly import Ref

_ADDRESS = Tensor.data_ptr


@dataclass(frozen=True, slots=True)
class _Views:
    addresses: list[int]  # of all parameters when these were made: freed or moved memory is not looked at
    views: list[Tensor]
    places: tuple[tuple[int, int, int], ...]
    first: Ref[Tensor]  # lets go of all this when it is gone


class Peeker:
    """Keeps views of parameters as long as the first of them lives."""

    def __init__(self) -> None:
        self._known: dict[int, _Views] = {}  # by id of the first parameter

    def peek(self, parameters: Sequence[Tensor]) -> Peek | None:
        """Copy elements of the parameters; None where they are no plain tensors, or none of them is on the host."""
        if not parameters or not PLAIN_TYPES.issuperset(map(type, parameters)):
            return None
        addresses, key = list(map(_ADDRESS, parameters)), id(parameters[0])
        known = self._known.get(key)
        if known is None or known.addresses != addresses:
            first = Ref(parameters[0], lambda _: self._known.pop(key, None))
            known = self._known[key] = _views_of(parameters, addresses, first)
        return Peek(torch.cat(known.views), known.places) if known.views else None


def _views_of(parameters: Sequence[Tensor], addresses: list[int], first: Ref[Tensor]) -> _Views:
    chosen = [
        (at, p.detach().view(-1))
        for at, p in enumerate(parameters)
        if p.device.type == "cpu" and p.is_floating_point() and p.is_contiguous() and p.numel() and is_there(p)
    ]
    sizes = accumulate(flat.numel() for _, flat in chosen)
    views = [
        flat if size <= WHOLE else flat[:: stride_of(flat.numel())]
        for (_, flat), size in zip(chosen, sizes, strict=True)
    ]
    bounds = pairwise(accumulate(map(len, views), initial=0))
    places = tuple((at, *pair) for (at, _), pair in zip(chosen, bounds, strict=True))
    return _Views(addresses, views, places, first)
