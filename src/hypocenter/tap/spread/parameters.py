"""Where parameters, their gradients and the optimizer's state lie: as tap/placement.py says, with the offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hypocenter.nouns import Place
from hypocenter.tap.names import NameMap
from hypocenter.tap.placement import Placements, Wrappers, placement_of_gradient, sees_whole_gradients
from hypocenter.tap.spread.where import NOWHERE, Where, cut, local_shape, offset_of_dtensor, place_in, text_of

_REPLICATED = ("dp", "tp")  # axes over which a counter of the optimizer is the same number


class SpreadOfParameters:
    """Says where parameters lie; nothing in a process that is alone.

    Args:
        names: of the models.
        wrappers: that were made.
        place: where this rank stands.
    """

    def __init__(self, names: NameMap, wrappers: Wrappers, place: Callable[[], Place]) -> None:
        self._names, self._wrappers, self._place = names, wrappers, place
        self._known: tuple[object, Placements] | None = None

    def placements(self) -> Placements:
        """Return the placements of all parameters of the models as they are now."""
        roots = self._names.roots()
        wrappers, named = self._wrappers.alive(roots), self._names.parameters()
        key = (self._names.generation, tuple(map(id, wrappers)), tuple(id(p) for _, p in named))
        if self._known is None or self._known[0] != key:
            self._known = (key, Placements(named, wrappers, roots))
        return self._known[1]

    @property
    def is_on(self) -> bool:
        """Whether there are other ranks, and it is known which."""
        return bool(self._place().world_size > 1 and self._place().groups)

    def of(
        self, placements: Placements, name: str, parameter: Tensor, tensor: Tensor, phase: str, optimizer: Any = None
    ) -> Where:
        """Return where a value of a parameter lies: the parameter itself, its gradient, or a state of its size.

        Args:
            placements: as they are now.
            name: the user's name of the parameter.
            tensor: the value.
            phase: "param", "grad" or "optimizer".
            optimizer: that will use it.
        """
        place = self._place()
        own = placements.of(name, parameter)
        if phase == "grad":
            is_reduced = optimizer is None or sees_whole_gradients(optimizer)
            text = placement_of_gradient(tensor, own, is_reduced=is_reduced)
        elif hasattr(tensor, "placements") or local_shape(tensor) == local_shape(parameter):
            text = placement_of_gradient(tensor, own, is_reduced=True)
        elif tensor.numel() == 1:
            text = text_of({axis: "R" for axis in _REPLICATED if place_in(place, axis)[1] > 1})
        else:
            return NOWHERE
        if hasattr(tensor, "placements"):
            return Where(placement=text, shape=tuple(tensor.shape), offset=offset_of_dtensor(tensor))
        return _of_plain(tensor, text, place, is_gated=is_gated(self._names.roots(), parameter))


def _of_plain(tensor: Tensor, text: str, place: Place, *, is_gated: bool) -> Where:
    axes = dict(word.split("=") for word in text.split())
    if is_gated or "S" in axes.values():  # flat shards: which elements are here is not known
        return Where(placement=text)
    return cut(tensor.shape, axes, place)


def is_gated(roots: list[torch.nn.Module], parameter: Tensor) -> bool:
    """Return whether a shard holds a piece of the gate and one of the rest (Megatron-Core's gated MLP)."""
    if not getattr(parameter, "tensor_model_parallel", False) or getattr(parameter, "partition_dim", 0) != 0:
        return False
    return any(
        getattr(getattr(module, "config", None), "gated_linear_unit", False)
        and any(
            p is parameter for p in getattr(module, "_modules", {}).get("linear_fc1", torch.nn.Module()).parameters()
        )
        for root in roots
        for module in root.modules()
        if "linear_fc1" in module._modules
    )
