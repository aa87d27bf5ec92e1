"""Copies of the parameters in float32 that an optimizer trains in their place: made again after new weights came.

Megatron-Core and DeepSpeed have a method for that, as they need it when they load a checkpoint. Copies of other
optimizers (apex, accelerate's and people's own) are known by their values: a tensor of an optimizer's that belongs to
no model, has the shape of a parameter and, cast to its format, the very same values.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.session.imposed.refuse import ImposeError

_REFRESH = {"megatron": "reload_model_params", "deepspeed": "refresh_fp32_params"}
"""Top package -> the method of its optimizers that copies the model's parameters."""
_RUN = 16  # values of a parameter that are looked for in a flat tensor
_TRIED = 4  # parameters that are looked for: a rank's flat tensor may hold a part of them only


class MasterCopies:
    """To be made before the parameters change: finds the copies. Nothing in a model without half precision.

    Args:
        parameters: those in half precision.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._of_frameworks: list[tuple[Any, str]] = []
        self._pairs: list[tuple[Tensor, Tensor]] = []
        if self._parameters:
            self._find()

    def refresh(self) -> int:
        """Make them again from the parameters as they are now; how many.

        Raises:
            ImposeError: an optimizer holds copies that nobody knows how to make again.
        """
        with torch.no_grad():
            for copy, parameter in self._pairs:
                copy.copy_(parameter)
            for optimizer, method in self._of_frameworks:
                getattr(optimizer, method)()
        return len(self._pairs) + len(self._of_frameworks)

    def _find(self) -> None:
        ours = {id(parameter) for parameter in self._parameters}
        optimizers: list[torch.optim.Optimizer] = []
        gc.collect()  # one that the program has let go of trains nothing
        for thing in gc.get_objects():
            kind = type(thing)
            method = _REFRESH.get(str(kind.__module__).partition(".")[0])  # of some classes it is a descriptor
            if method is not None and hasattr(kind, method) and hasattr(kind, "step"):
                self._of_frameworks.append((thing, method))
            elif issubclass(kind, torch.optim.Optimizer):
                optimizers.append(thing)
        if self._of_frameworks:
            return
        by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in self._parameters:
            by_shape[tuple(parameter.shape)].append(parameter)
        for optimizer in optimizers:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            if any(id(p) in ours for p in held):
                continue
            found = [(p, of) for p in held if (of := _copied(p, by_shape)) is not None]
            if not found and any(_holds_one(flat, self._parameters) for flat in held):
                raise _unknown(optimizer)
            self._pairs += found


def _copied(copy: Tensor, by_shape: dict[tuple[int, ...], list[Tensor]]) -> Tensor | None:
    """The parameter that this is a copy of."""
    if copy.dtype != torch.float32:
        return None
    for parameter in by_shape.get(tuple(copy.shape), ()):
        if copy.device == parameter.device and torch.equal(copy.detach().to(parameter.dtype), parameter.detach()):
            by_shape[tuple(copy.shape)] = [p for p in by_shape[tuple(copy.shape)] if p is not parameter]
            return parameter
    return None


def _holds_one(flat: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether a flat tensor in float32 has the values of one of the parameters in it, one after another."""
    if flat.dtype != torch.float32 or flat.dim() != 1:
        return False
    with torch.no_grad():
        for parameter in sorted(parameters, key=lambda p: -p.numel())[:_TRIED]:
            wanted = parameter.detach().flatten()[:_RUN]
            n = flat.numel() - wanted.numel() + 1
            if n < 1 or flat.device != wanted.device or not bool(wanted.count_nonzero()):
                continue
            values = flat.detach().to(parameter.dtype)
            here = torch.ones(n, dtype=torch.bool, device=flat.device)
            for place in range(wanted.numel()):
                here &= values[place : place + n] == wanted[place]
            if bool(here.any()):
                return True
    return False


def _unknown(optimizer: Any) -> ImposeError:
    return ImposeError(
        f"{type(optimizer).__name__} trains float32 copies that cannot be made again", where="--initial-weights",
        why="they were made from the weights that the program began with, and would put these back at the first step",
        fix="load the weights in the program, before the optimizer is made",
    )  # fmt: skip
