"""What the last dimension of an activation says under tensor parallelism: the whole width, or one rank's share of it.

A module's own weight tells of what goes in and comes out of it. For modules without weights, and those around others,
the widths of all weights together tell, as long as no number is both a whole width and a share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from hypocenter.tap.spread.where import local_shape

Share = Literal["whole", "share", "unknown"]


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
        """What a tensor of this width is.

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
