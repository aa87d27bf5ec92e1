"""Operators that draw from a state of their own: a replay must not call them, or they would go on differently after it.

`nn.Dropout` and `ops.dropout` are one operator whose kernel counts its calls; MindSpore can neither read that count nor
put it back. In a replay values are dropped by a mask of ours instead: as many, but not the same ones.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]

_DROPOUT = ("Dropout", "Dropout2D", "Dropout3D")
_OF_SHAPE = ("StandardNormal", "StandardLaplace", "UniformReal")  # called with the shape of what they draw
_SEED = 0xD12A  # any number


class OwnDraws(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Entered around a replay, outside of every other dispatch mode.

    Attributes:
        seen: whether the replay drew something else than the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self._random = np.random.default_rng(_SEED)

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Called for every operator in place of it."""
        if func.name in _OF_SHAPE and (shape := _shape(args)) is not None:
            self.seen = True
            return ms.Tensor(self._random.standard_normal(shape).astype(np.float32))
        if func.name not in _DROPOUT:
            return func(*args)
        x, keep = _operands(args)
        if x is None:
            return func(*args)
        self.seen = self.seen or keep < 1.0
        shape = x.shape if func.name == "Dropout" else (*x.shape[:2], *(1,) * (x.ndim - 2))  # whole channels
        mask = ms.Tensor((self._random.random(shape) < keep).astype(np.float32) / keep).astype(x.dtype)
        return x * mask, mask


def _operands(args: Any) -> tuple[Any, float]:
    """(input, rate of what is kept) of an operator that is called as (operator, name, operands)."""
    operator = args[0] if args else None
    given = args[2] if len(args) > 2 and isinstance(args[2], tuple) else args
    x = next((each for each in given if isinstance(each, ms.Tensor)), None)
    keep: Any = getattr(operator, "keep_prob", None)
    keep = next((each for each in given if isinstance(each, float)), 1.0) if keep is None else keep
    return x, float(keep)


def _shape(args: Any) -> tuple[int, ...] | None:
    """Of an operator whose only operand is a shape: of numbers, or as a tensor."""
    given = args[2] if len(args) > 2 and isinstance(args[2], tuple) else args
    shape = given[0] if len(given) == 1 else given
    if isinstance(shape, ms.Tensor):
        shape = tuple(int(each) for each in shape.asnumpy().reshape(-1))
    is_shape = isinstance(shape, tuple) and all(isinstance(each, int) for each in shape)
    return shape if is_shape else None
