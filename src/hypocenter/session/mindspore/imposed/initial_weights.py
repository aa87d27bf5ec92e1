"""`--initial-weights PATH`: the model starts from these weights; all of its parameters, or the program is stopped.

They are put in when a model first runs in training: it is complete then, and no optimizer has any state.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.session.imposed.weights_from import OPTION, WeightsFrom
from hypocenter.session.mindspore.imposed.held import Held, buffers_of, heads_of, held_by
from hypocenter.session.mindspore.imposed.tensors import as_mindspore, put
from hypocenter.summary.reducers.mindspore_values import dtype_name
from hypocenter.tap.mindspore.names import NameMap, optimizer_classes

_HALF = ("float16", "bfloat16")


class InitialWeights:
    """Puts a checkpoint's values into the models that the program trains."""

    def __init__(self, weights: WeightsFrom, names: NameMap) -> None:
        self._weights, self._names = weights, names
        self._loaded: set[int] = set()  # Parameters

    def before_first_forward(self, root: Any) -> None:
        """Give the parameters of a model their values: it is about to run for the first time.

        Raises:
            HypocenterError: not every parameter of it can be given a value.
        """
        held = [one for one in held_by(root, self._names, OPTION) if id(one.parameter) not in self._loaded]
        if not held:
            return
        weights = self._weights
        weights.is_part = weights.is_part or bool(self._loaded)
        wanted = [one for one in held if one.is_trained or self._has(one)]
        buffers = dict(buffers_of(root))
        given = weights.to([one.wanted for one in wanted], buffers=buffers, settings=heads_of(root))
        masters = MasterCopies([one.parameter for one in wanted])
        for one in wanted:
            put(one.parameter, as_mindspore(given.views[one.names[0]], dtype_name(one.parameter)))
        for name, buffer in buffers.items():
            view = given.buffers.get(name)
            if view is not None and view.shape == tuple(buffer.shape):
                put(buffer, as_mindspore(view, dtype_name(buffer)))
        self._loaded |= {id(one.parameter) for one in held}
        weights.say(given, [one.wanted for one in wanted], masters.refresh())

    def nothing_is_left(self) -> None:
        """Check that no weights are left over: a micro-batch has run forward through all of its models.

        Raises:
            CheckpointError: weights are left over.
        """
        self._weights.nothing_is_left()

    def _has(self, one: Held) -> bool:
        """Return whether the checkpoint has such statistics under any name: a file of parameters alone has none."""
        own = {one.names[0].rpartition(".")[2], "running_mean", "running_var"}
        return any(name.rpartition(".")[2] in own for name in self._weights.source.tensors)


# They are known by their values: a Parameter of an optimizer's that belongs to no model, has the shape of a parameter
# in half precision and, cast to its format, the very same values.
class MasterCopies:
    """Copies of the parameters that optimizers hold in float32; none in a model without half precision.

    Args:
        parameters: of the model.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        half = [parameter for parameter in parameters if dtype_name(parameter) in _HALF]
        if half:
            self._find(half, {id(parameter) for parameter in parameters})

    def refresh(self) -> int:
        """Make the copies again from the parameters as they are now, and return how many there are."""
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
