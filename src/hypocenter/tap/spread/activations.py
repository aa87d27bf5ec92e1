"""Where inputs and outputs of modules lie over the ranks.

    dp    along the batch: the dimension that is as large as the first one of what the model was called with; what has
          no such dimension is taken for a copy; a single number is the mean over the samples of the rank
    tp    what a DTensor says of itself; else the width of the tensor tells (widths.py), and its length whether ranks
          share the sequence. Integers and masks of bool are copies
    cp    is not told: a context may be cut in two halves per rank

What nothing tells has no placement. Gradients lie as the values do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hypocenter.nouns import Place
from hypocenter.tap.names import NameMap
from hypocenter.tap.placement import Placements
from hypocenter.tap.spread.parameters import SpreadOfParameters, is_gated
from hypocenter.tap.spread.where import NOWHERE, Where, cut, local_shape, offset_of_dtensor, place_in, text_of
from hypocenter.tap.tree import flatten

_MOST_DIMS = 3  # (batch, sequence, width): of a tensor with heads the last dimension says nothing
Share = Literal["whole", "share", "unknown"]


class SpreadOfActivations:
    """Says where activations lie; `begin` is to be told of each call of an outermost module.

    Args:
        parameters: where the parameters lie.
        names: of the models.
        place: where this rank stands.
    """

    def __init__(self, parameters: SpreadOfParameters, names: NameMap, place: Callable[[], Place]) -> None:
        self._parameters, self._names, self._place = parameters, names, place
        self._where = Place()
        self._dp = self._tp = 1
        self._batch = self._length = 0
        self._widths: tuple[Placements, Widths, bool] | None = None
        self._gated: set[int] = set()
        self._is_megatron = False
        self.is_on = False

    def begin(self, args: Any, kwargs: Mapping[str, Any] | None) -> None:
        """Note the sizes of the batch that an outermost module is called with, by which activations are placed."""
        self._where = self._place()
        self._dp, self._tp = place_in(self._where, "dp")[1], place_in(self._where, "tp")[1]
        self.is_on = self._dp > 1 or self._tp > 1
        if not self.is_on:
            return
        self._batch, self._length = _batch_and_length([*_tensors(args), *_tensors(kwargs or {})])
        if self._tp > 1:
            self._look()

    def _look(self) -> None:
        placements = self._parameters.placements()
        if self._widths is not None and self._widths[0] is placements:
            return
        weights: list[tuple[nn.Module, Tensor, int | None]] = []
        for name, module in self._names.modules():
            weight = module._parameters.get("weight")
            if weight is not None:
                text = placements.of(f"{name}.weight", weight)
                weights.append((module, weight, _shared_dim(text)))
        self._gated = {id(m) for m, w, _ in weights if is_gated(self._names.roots(), w)}
        self._is_megatron = any(hasattr(w, "tensor_model_parallel") for _, w, _ in weights)
        is_parallel = any(dim is not None for _, _, dim in weights)
        self._widths = (placements, Widths(weights, self._tp), is_parallel)

    def of(self, module: nn.Module | None, side: str, tensor: Tensor) -> Where | None:
        """Return where a value lies that a module takes ("in") or gives ("out"); None in a process that is alone."""
        if not self.is_on:
            return None
        if id(module) in self._gated and side == "out":
            return NOWHERE
        if hasattr(tensor, "placements"):
            return self._of_dtensor(tensor)
        axes: dict[str, str] = {}
        dim = self._batch_dim(tensor.shape)
        if self._dp > 1:
            is_mean = dim is None and not tensor.dim() and tensor.is_floating_point()
            axes["dp"] = "P" if is_mean else "R" if dim is None else f"S({dim})"
        if self._tp > 1 and self._widths is not None and self._widths[2]:
            over_tensors = self._over_tensors(module, side, tensor, dim)
            if not over_tensors:
                return NOWHERE
            axes["tp"] = over_tensors
        return cut(tensor.shape, axes, self._where)

    def of_gradient(self, gradient: Tensor, where: Where | None) -> Where | None:
        """Return where the gradient of a value lies, given where the value does."""
        if where is None or not self.is_on:
            return None
        if hasattr(gradient, "placements"):
            return self._of_dtensor(gradient)
        if "tp=P" in where.placement:
            return NOWHERE
        if "dp=R" in where.placement:  # each rank has what its own samples say of it
            return replace(where, placement=where.placement.replace("dp=R", "dp=P"))
        return where

    def _of_dtensor(self, tensor: Any) -> Where:
        axes: dict[str, str] = {}
        for number, placement in enumerate(tensor.placements):
            axis = self._axis(tensor.device_mesh, number)
            if not axis or axis in axes:
                return NOWHERE
            kind = kind_of(placement)
            if not kind:
                return NOWHERE
            axes[axis] = kind
        offset = offset_of_dtensor(tensor)
        shape = list(tensor.shape)
        if self._dp > 1 and "dp" not in axes:
            dim = self._batch_dim(shape)
            axes["dp"] = "R" if dim is None else f"S({dim})"
            if dim is not None and offset is not None:
                if f"S({dim})" in (kind for axis, kind in axes.items() if axis != "dp"):
                    return NOWHERE
                position = place_in(self._where, "dp")[0]
                offset = tuple(position * shape[dim] if i == dim else start for i, start in enumerate(offset))
                shape[dim] *= self._dp
        return Where(placement=text_of(axes), shape=tuple(shape), offset=offset)

    def _axis(self, mesh: Any, number: int) -> str:
        """Return the axis whose group a dimension of a mesh is; "" if none is known."""
        ranks = set(torch.distributed.get_process_group_ranks(mesh.get_group(number)))
        found = [axis for axis, group in self._where.groups.items() if set(group) == ranks]
        return found[0] if len(found) == 1 or (found and len(ranks) == 1) else "tp" if "tp" in found else ""

    def _batch_dim(self, shape: Any) -> int | None:
        """Return the dimension that counts samples; None for none."""
        n, length = self._batch, self._length
        if not len(shape) or not n:
            return None
        is_sequence_first = len(shape) > 2 and shape[1] == n and shape[0] in (length, length // self._tp)
        if is_sequence_first and (self._is_megatron or shape[0] != n):
            return 1
        if shape[0] == n:
            return 0
        is_flat = len(shape) <= 2 and length > 1 and shape[0] == n * length
        return 0 if is_flat and not self._is_megatron else None

    def _over_tensors(self, module: nn.Module | None, side: str, tensor: Tensor, batch_dim: int | None) -> str:
        """Return how tensor-parallel ranks share a value: R, S(dim), or "" when nothing tells."""
        shape = tensor.shape
        if not tensor.is_floating_point() or not len(shape):
            return "R"
        if len(shape) > _MOST_DIMS or self._widths is None:
            return ""
        share = self._widths[1].of(module, side, shape[-1])
        if share == "unknown":
            return ""
        along = 1 - batch_dim if len(shape) == _MOST_DIMS and batch_dim in (0, 1) else None
        is_cut = along is not None and self._length > 1 and shape[along] * self._tp == self._length
        if along is not None and not is_cut and shape[along] != self._length:
            return ""
        if is_cut:
            return f"S({along})" if share == "whole" else ""
        return "R" if share == "whole" else f"S({len(shape) - 1})"


def kind_of(placement: Any) -> str:
    """Return R, S(dim) or P for a DTensor's placement; "" if local values are neither parts nor summands."""
    if placement.is_replicate():
        return "R"
    if placement.is_partial():  # of a shared embedding the values of tokens of other ranks are anything
        return "P" if type(placement).__name__ == "Partial" and placement.reduce_op == "sum" else ""
    return f"S({placement.dim})" if type(placement).__name__ == "Shard" else ""


def _batch_and_length(given: list[Tensor]) -> tuple[int, int]:
    """Return (samples in a batch, their length), 0 when unknown: of integers, else of the first tensor."""
    with_dims = [t for t in given if t.dim()]
    of_tokens = [t for t in with_dims if not t.is_floating_point() and not t.is_complex()]
    for tensor in (*of_tokens, *with_dims):
        shape = tensor.shape
        has_length = len(shape) > 2 or (len(shape) == 2 and not tensor.is_floating_point())
        return shape[0], shape[1] if has_length else 0
    return 0, 0


def _tensors(values: Any) -> Iterator[Tensor]:
    for _, tensor in flatten(values, ""):
        yield tensor


def _shared_dim(placement: str) -> int | None:
    for word in placement.split():
        if word.startswith("tp=S("):
            return int(word[5:-1])
    return None


# A module's own weight tells of what goes in and comes out of it. For modules without weights, and those around others,
# the widths of all weights together tell, as long as no number is both a whole width and a share.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Widths of what goes into a module or comes out of it."""

    whole: int
    share: int  # 0: it is never shared out


class Widths:
    """Widths of one model.

    Args:
        weights: (module, its weight, the dimension of it that tensor-parallel ranks share, None for none).
        tp: number of tensor-parallel ranks.
    """

    def __init__(self, weights: Iterable[tuple[nn.Module, Tensor, int | None]], tp: int) -> None:
        self._sides: dict[int, dict[str, _Side]] = {}
        self._whole: set[int] = set()
        self._share: set[int] = set()
        for module, weight, dim in weights:
            sides = _sides(module, weight, dim, tp)
            self._sides[id(module)] = sides
            self._whole |= {side.whole for side in sides.values()}
            self._share |= {side.share for side in sides.values() if side.share}

    def of(self, module: nn.Module | None, side: str, width: int) -> Share:
        """Tell whether a tensor of this width is whole or this rank's share.

        Args:
            module: that takes or gives it.
            side: "in" or "out".
            width: its last dimension.
        """
        own = self._sides.get(id(module), {}).get(side)
        if own is not None:
            return "whole" if width == own.whole else "share" if width == own.share else "unknown"
        if (width in self._whole) == (width in self._share):
            return "unknown"
        return "whole" if width in self._whole else "share"


def _sides(module: nn.Module, weight: Tensor, dim: int | None, tp: int) -> dict[str, _Side]:
    local = local_shape(weight)
    sizes = [size * tp if i == dim and not hasattr(weight, "placements") else size for i, size in enumerate(local)]
    sizes = list(weight.shape) if hasattr(weight, "placements") else sizes
    if len(sizes) == 1:  # of a norm
        both = _Side(whole=sizes[0], share=0 if dim is None else sizes[0] // tp)
        return {"in": both, "out": both}
    if len(sizes) != 2:
        return {}
    first = _Side(whole=sizes[0], share=sizes[0] // tp if dim == 0 else 0)
    second = _Side(whole=sizes[1], share=sizes[1] // tp if dim == 1 else 0)
    if "Embedding" in type(module).__name__ or isinstance(module, nn.Embedding):
        return {"out": second}
    return {"in": second, "out": first}
