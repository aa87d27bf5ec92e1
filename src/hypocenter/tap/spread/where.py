"""How the values here lie in the logical tensor that all ranks hold together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.axes import OUTER_FIRST
from hypocenter.nouns import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place of a rank's values.

    Attributes:
        placement: as in nouns.Reading.placement; "" when it is not known.
        shape: of the logical tensor.
        offset: where the part here starts, dimension by dimension; None when that is not known: then a sketch taken
            here would not add up with those of the other parts.
    """

    placement: str = ""
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] | None = None

    @property
    def is_part(self) -> bool:
        """Whether other ranks hold other parts."""
        return "=S" in self.placement


NOWHERE = Where()


def text_of(axes: Mapping[str, str]) -> str:
    """Write the placement as text, axes in their order: `dp=S(0) tp=R`."""
    return " ".join(f"{axis}={axes[axis]}" for axis in OUTER_FIRST if axis in axes)


def place_in(groups: Place, axis: str) -> tuple[int, int]:
    """Return (position in the group of this axis, its size); (0, 1) where there is no such axis."""
    ranks = groups.groups.get(axis, ())
    return (ranks.index(groups.rank), len(ranks)) if groups.rank in ranks else (0, 1)


def cut(shape: Sequence[int], axes: Mapping[str, str], place: Place) -> Where:
    """Return the place of values of this shape, cut into equal parts: "S(1)" is cut along dimension 1.

    Unknown, when two axes cut the same dimension: nothing tells which of them cuts first. And when there is no such
    dimension: flat pieces of a parameter (Megatron-Core's distributed optimizer) lie otherwise than it does.
    """
    whole, offset = list(shape), [0] * len(shape)
    done: set[int] = set()
    for axis, kind in axes.items():
        if not kind.startswith("S("):
            continue
        dim, (position, size) = int(kind[2:-1]), place_in(place, axis)
        if dim in done or dim >= len(shape):
            return NOWHERE
        done.add(dim)
        offset[dim], whole[dim] = position * shape[dim], size * shape[dim]
    return Where(placement=text_of(axes), shape=tuple(whole), offset=tuple(offset))


def local_shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape of what is here: of a DTensor that of its shard."""
    own = getattr(tensor, "_local_tensor", None)
    return tuple((tensor if own is None else own).shape)


def offset_of_dtensor(tensor: Any) -> tuple[int, ...] | None:
    """Return where the shard of a DTensor starts, by dimension; None where this torch does not tell."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    except Exception:  # a private function of torch, and placements that it does not know
        return None
    is_whole = len(offset) == len(tensor.shape) and tuple(size) == local_shape(tensor)
    return tuple(int(start) for start in offset) if is_whole else None
