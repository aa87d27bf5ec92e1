"""Values between MindSpore's tensors and the bits that checkpoints and recordings hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.weights.checkpoint import Box, Tensor, whole
from hypocenter.compare.weights.elements import cast, is_floating, values
from hypocenter.summary.reducers.mindspore_values import dtype_name, from_bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHost(Tensor):
    """A tensor that was copied to the host, as `weights` reads tensors."""

    bits: NDArray[Any]

    def read(self, box: Box) -> NDArray[Any]:
        """Return the bits of a box of the tensor."""
        return self.bits[tuple(slice(start, stop) for start, stop in box)]


def copied(tensor: Any) -> OnHost:
    """Copy a MindSpore tensor to the host."""
    array = tensor.asnumpy()
    bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return OnHost(shape=tuple(tensor.shape), dtype=dtype_name(tensor), bits=np.array(bits, order="C"))


def as_mindspore(view: Tensor, dtype: str) -> Any:
    """Make a stored tensor one of MindSpore's in this format, rounded to nearest where the format is shorter."""
    bits = np.ascontiguousarray(view.read(whole(view.shape))).reshape(view.shape)
    if is_floating(view.dtype) and is_floating(dtype):
        bits = cast(bits, view.dtype, dtype)
        array = from_bfloat16(bits) if dtype == "bfloat16" else bits
    else:
        array = values(bits, view.dtype)
    found = ms.Tensor(np.array(array))  # a copy: what is mapped from a file cannot be written to
    return found if dtype_name(found) == dtype else found.astype(getattr(ms, dtype))


def put(parameter: Any, tensor: Any) -> None:
    """Give a Parameter these values in its own memory, where a graph that is compiled already reads them."""
    if getattr(parameter, "has_init", False):
        parameter.init_data()
    with ms._no_grad():
        try:
            ms.ops.assign(parameter, tensor)
        except TypeError:  # no kernel for this format (bfloat16 on a CPU): only safe before a graph was compiled
            parameter.set_data(tensor)
