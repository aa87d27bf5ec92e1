"""`--gradients-from RUN`: the optimizer gets the gradients that RUN's got, so that only the optimizers differ.

They are put in last: after the program's own clipping, and inside a scaler's or framework's step after it took the
loss scale out and clipped. What is recorded of gradients elsewhere stays the program's own; `update-*.safetensors` of
level tensors holds what the optimizer got. At steps that RUN has no gradients of, the program keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hypocenter.compare.updates.recorded import ParameterUpdate
from hypocenter.compare.weights.checkpoint import Tensor as View
from hypocenter.compare.weights.imposing import Wanted
from hypocenter.session.imposed.initial_weights import as_torch
from hypocenter.session.imposed.laid_out import heads_of
from hypocenter.session.imposed.recorded_gradients import OPTION, RecordedGradients, grad_scale, is_without
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.session.trained import Trained, trained
from hypocenter.tap.flat_parameters import is_flat
from hypocenter.tap.names import NameMap


class GradientsFrom:
    """Puts a recording's gradients into the tensors that an optimizer is about to use.

    Args:
        recorded: the gradients.
    """

    def __init__(self, recorded: RecordedGradients, names: NameMap) -> None:
        self._recorded, self._names = recorded, names

    def before_rule(self, optimizer: Optimizer, step: int) -> None:
        """Replace the final gradients of this step by those of RUN's step.

        Raises:
            HypocenterError: a parameter that has a gradient gets none, or one of another shape.
        """
        source = self._recorded.of(step)
        if source is None:
            return
        held = trained(optimizer, self._names)
        wanted = [one for one in held if one.tensor.requires_grad or one.tensor.grad is not None]
        views = self._views(source, [one for one in wanted if not is_without(source, one.name)])
        with torch.no_grad():
            for one in wanted:
                view = views.get(one.name)
                if view is None:  # RUN's parameter had no gradient at this step either
                    one.tensor.grad = None
                else:
                    _put(one, view, grad_scale(source.get(one.name)))

    def _views(self, source: Mapping[str, ParameterUpdate], wanted: Sequence[Trained]) -> Mapping[str, View]:
        flat = next((one.name for one in wanted if is_flat(one.tensor)), None)
        if flat is not None:
            raise ImposeError(
                f"gradients cannot be put into {flat!r}", where=OPTION, why="FSDP keeps it in a flat parameter",
                fix="use FSDP2 (fully_shard), or DDP",
            )  # fmt: skip
        roots = self._names.roots()
        return self._recorded.views(
            source,
            [
                Wanted(
                    names=(one.name, *self._other_names(one)),
                    shape=tuple(_local(one.tensor).shape),
                    dtype=str(one.tensor.dtype).removeprefix("torch."),
                )
                for one in wanted
            ],
            heads_of(roots[0]) if roots else {},
        )

    def _other_names(self, one: Trained) -> tuple[str, ...]:
        names = self._names.param_names(one.parameter) if one.parameter is not None else ()
        return tuple(name for name in names if name != one.name)


def _put(one: Trained, view: View, scale: float) -> None:
    gradient = as_torch(view, tuple((0, n) for n in view.shape))
    if scale != 1.0:
        gradient = gradient / scale
    if one.tensor.grad is None or one.tensor.grad.layout is not torch.strided:
        one.tensor.grad = torch.zeros_like(one.tensor)
    _local(one.tensor.grad).copy_(gradient)


def _local(tensor: Any) -> Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
