"""`--initial-weights PATH`: the model starts from these weights; all of its parameters, or the program is stopped.

They are put in when a model first runs in training: it is complete then, and no optimizer has any state.
"""

from __future__ import annotations

from typing import Any

from hypocenter.session.imposed.weights_from import OPTION, WeightsFrom
from hypocenter.session.mindspore.imposed.held import Held, buffers_of, heads_of, held_by
from hypocenter.session.mindspore.imposed.master_copies import MasterCopies
from hypocenter.session.mindspore.imposed.tensors import as_mindspore, put
from hypocenter.summary.reducers.mindspore_values import dtype_name
from hypocenter.tap.mindspore.names import NameMap


class InitialWeights:
    """Puts a checkpoint's values into the models that the program trains."""

    def __init__(self, weights: WeightsFrom, names: NameMap) -> None:
        self._weights, self._names = weights, names
        self._loaded: set[int] = set()  # Parameters

    def before_first_forward(self, root: Any) -> None:
        """A model is about to run for the first time.

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
        """A micro-batch has run forward: all models that it goes through have been called.

        Raises:
            CheckpointError: weights are left over.
        """
        self._weights.nothing_is_left()

    def _has(self, one: Held) -> bool:
        """Whether the checkpoint has statistics under any name: a file of parameters alone has none."""
        own = {one.names[0].rpartition(".")[2], "running_mean", "running_var"}
        return any(name.rpartition(".")[2] in own for name in self._weights.source.tensors)
