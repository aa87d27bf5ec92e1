"""`--gradients-from RUN`: the optimizer gets the gradients that RUN's got, so that only the optimizers differ.

They go in where the program calls its optimizer: after its own clipping and unscaling. An optimizer that divides by a
loss scale of its own (`nn.Optimizer(loss_scale=...)`) gets them multiplied by it. At steps that RUN has no gradients
of, the program keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.compare.updates.recorded import ParameterUpdate
from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.compare.weights.imposing import Wanted
from hypocenter.session.imposed.recorded_gradients import OPTION, RecordedGradients, grad_scale, is_without
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.session.mindspore.imposed.held import heads_of
from hypocenter.session.mindspore.imposed.tensors import as_mindspore
from hypocenter.summary.reducers.mindspore_values import dtype_name
from hypocenter.tap.mindspore.names import NameMap


class GradientsFrom:
    """Hands a recording's gradients to an optimizer that is called."""

    def __init__(self, recorded: RecordedGradients, names: NameMap) -> None:
        self._recorded, self._names = recorded, names

    def in_place_of(
        self, optimizer: Any, parameters: Sequence[Any], gradients: Sequence[Any], step: int
    ) -> Sequence[Any]:
        """Return the gradients that the optimizer is to use: RUN's of this step, or its own if RUN has none.

        Raises:
            HypocenterError: a parameter gets none, or one of another shape.
        """
        source = self._recorded.of(step)
        if source is None:
            return gradients
        if len(parameters) != len(gradients):
            raise ImposeError(
                f"{type(optimizer).__name__} is called with {len(gradients)} gradients for {len(parameters)} "
                "parameters", where=OPTION, why="which gradient belongs to which parameter is not known",
            )  # fmt: skip
        wanted = [self._wanted(parameter) for parameter in parameters]
        roots = self._names.roots()
        views = self._recorded.views(
            source,
            [one for one in wanted if not is_without(source, one.names[0])],
            heads_of(roots[0]) if roots else {},
        )
        own_scale = float(getattr(optimizer, "loss_scale", 1.0) or 1.0)
        return [
            _given(one, views, source, gradient, own_scale) for one, gradient in zip(wanted, gradients, strict=True)
        ]

    def _wanted(self, parameter: Any) -> Wanted:
        names = self._names.param_names(parameter) or (str(parameter.name),)
        return Wanted(names=names, shape=tuple(parameter.shape), dtype=dtype_name(parameter))


def _given(
    one: Wanted, views: Mapping[str, Tensor], source: Mapping[str, ParameterUpdate], own: Any, own_scale: float
) -> Any:
    view = views.get(one.names[0])
    if not isinstance(own, ms.Tensor):
        raise ImposeError(
            f"the gradient of {one.names[0]} cannot be replaced", where=OPTION, why=f"it is a {type(own).__name__}"
        )
    if view is None:  # RUN's parameter had no gradient at this step
        return ms.ops.zeros_like(own)
    factor = own_scale / grad_scale(source.get(one.names[0]))
    if factor == 1.0:
        return as_mindspore(view, dtype_name(own))
    return (as_mindspore(view, "float32") * factor).astype(own.dtype)
