"""Copies of the parameters in float32 that an optimizer trains in their place: made again after new weights came.

They are known by their values: a Parameter of an optimizer's that belongs to no model, has the shape of a parameter in
half precision and, cast to its format, the very same values.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.session.mindspore.imposed.tensors import put
from hypocenter.summary.reducers.mindspore_values import dtype_name
from hypocenter.tap.mindspore.names import optimizer_classes

_HALF = ("float16", "bfloat16")


class MasterCopies:
    """To be made before the parameters change: finds the copies. Nothing in a model without half precision.

    Args:
        parameters: of the model.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        half = [parameter for parameter in parameters if dtype_name(parameter) in _HALF]
        if half:
            self._find(half, {id(parameter) for parameter in parameters})

    def refresh(self) -> int:
        """Make them again from the parameters as they are now; how many."""
        for copy, parameter in self._pairs:
            put(copy, parameter.astype(ms.float32))
        return len(self._pairs)

    def _find(self, half: Sequence[Any], ours: set[int]) -> None:
        by_shape: dict[tuple[int, ...], list[Any]] = defaultdict(list)
        for parameter in half:
            by_shape[tuple(parameter.shape)].append(parameter)
        kinds = optimizer_classes()  # of the type: `isinstance` asks objects that are gone already (weak proxies)
        for optimizer in [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]:
            for copy in optimizer.get_parameters():
                if id(copy) in ours or dtype_name(copy) != "float32":
                    continue
                of = next((p for p in by_shape[tuple(copy.shape)] if _is_copy(copy, p)), None)
                if of is not None:
                    self._pairs.append((copy, of))
                    by_shape[tuple(copy.shape)] = [p for p in by_shape[tuple(copy.shape)] if p is not of]


def _is_copy(copy: Any, parameter: Any) -> bool:
    held, there = copy.astype(parameter.dtype).asnumpy(), parameter.asnumpy()
    return bool((held == there).all() and (there != 0).any())  # zeros are momenta that were not used yet
