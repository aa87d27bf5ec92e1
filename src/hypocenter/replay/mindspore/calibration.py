"""A replay in which what other good software may round otherwise is off by one rounding: how far apart good runs are.

As hypocenter.replay.calibration, on MindSpore's operators: operands and results of every one that adds up become
x + x·u·r with r uniform in (-1, 1) and u of x's own format, in forward and, where MindSpore shows the operators of it,
in backward. Backward of an operator that is not shown gets operands that are off.
"""

from __future__ import annotations

import re
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]

from hypocenter.replay.roundoff import EXACT_UP_TO, UNIT
from hypocenter.summary.reducers.mindspore_values import dtype_name, on_host

_SUMS = re.compile(
    r"MatMul|^Dense|Linear|Addmm|Baddbmm|Addbmm|^Bmm|^Mm|^Mv|^Dot|Einsum"
    r"|Sum|Mean|^Var|Std|Prod|Norm|Softmax|LogSumExp|Loss|Entropy|Attention"
    r"|Conv\dD|Conv(?:olution)?(?:$|Ext|Grad|Transpose)|AvgPool|Upsample|Resize|LSTM|GRU|CudnnGRU|Rnn|Cdist|FFT"
    r"|BiasAddGrad|GatherDGrad|EmbeddingDenseBackward|IndexAdd|ScatterAdd|ScatterNd$|^AddN$|BatchNorm"
)
"""Names of operators that add up: parts of products, reductions, norms, attention, convolutions, losses."""
_NOT = re.compile(r"^(?:Assign|Normal|StandardNormal|CumSum_?Max)|Max(?!Softmax)|Argmax|InplaceNormal|Random")


class Rounding(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Perturb values by rounding while it is entered. It has its own generator, and writes to nothing of the program.

    Args:
        seed: another one gives another sample.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)
        self._is_own = False  # operators of ours run

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place, with operands and results off by rounding if it adds up."""
        if self._is_own or not adds_up(str(func.name)):
            return func(*args)
        return self._moved(func(*self._moved(args)))

    def _moved(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(self._moved(each) for each in value)
        if not isinstance(value, ms.Tensor) or dtype_name(value) not in UNIT or not value.size:
            return value
        self._is_own = True
        try:
            return off_by_one_rounding(value, self._random)
        finally:
            self._is_own = False


def off_by_one_rounding(tensor: Any, random: np.random.Generator) -> Any:
    """Return x·(1 + u·r), rounded to the tensor's format; whole numbers and what would overflow stay as they are.

    The factor is multiplied to the tensor itself, so that gradients go through it.
    """
    dtype = dtype_name(tensor)
    values = on_host(tensor)
    wide = np.float64 if dtype == "float64" else np.float32
    factor = 1.0 + UNIT[dtype] * (2.0 * random.random(values.shape) - 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        stays = (values == np.rint(values)) & (np.abs(values) <= EXACT_UP_TO[dtype])
        stays |= ~np.isfinite(values) | ~np.isfinite((values * factor).astype(values.dtype))
    factor = ms.Tensor(np.where(stays, 1.0, factor).astype(wide))
    if dtype in ("float16", "bfloat16"):
        return (tensor.astype(ms.float32) * factor).astype(tensor.dtype)
    return tensor * factor


def adds_up(name: str) -> bool:
    """Return whether an operator adds up in an order that its kernel chooses."""
    return bool(_SUMS.search(name)) and not _NOT.search(name)
