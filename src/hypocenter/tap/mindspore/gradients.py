"""Norms of gradients: on the CPU at once, from the tensors' own memory; elsewhere on the device, read all together."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore import ops  # pyright: ignore[reportMissingImports]


class Norms:
    """L2 norms of some tensors, as they are now. `read` returns them; until then nothing waits for the device."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._refs = [weakref.ref(tensor) for tensor in tensors]
        self._host: list[float] | None = None
        self._device: list[Any] = []
        if ms.get_context("device_target") == "CPU":
            self._host = [_norm(tensor) for tensor in tensors]
        else:
            with ms.common.api._no_grad():
                self._device = [ops.norm(ops.cast(values_of(tensor), ms.float32)) for tensor in tensors]

    def are_of(self, tensors: Sequence[Any]) -> bool:
        """Return whether these are the very tensors that were measured."""
        return len(tensors) == len(self._refs) and all(r() is t for r, t in zip(self._refs, tensors, strict=True))

    def read(self) -> list[float]:
        """Return one number for each, NaN or infinite where the tensor is not finite. One transfer for all."""
        if self._host is None:
            self._host = [float(x) for x in ops.stack(self._device).asnumpy()] if self._device else []
            self._device = []
        return self._host


def values_of(tensor: Any) -> Any:
    """Return the dense values; of a sparse gradient (RowTensor, COOTensor) those that are stored."""
    return tensor if isinstance(tensor, ms.Tensor) else getattr(tensor, "values", tensor)


def is_finite(tensor: Any) -> bool:
    """Return whether every element is finite."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(host(tensor)).all())


def exact_norm(tensor: Any) -> float:
    """Return the norm in float64, for a tensor whose square overflows float32."""
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(host(tensor).astype(np.float64).reshape(-1)))


def host(tensor: Any) -> Any:
    """Return a NumPy array, in float32 where NumPy has no such format; it must not be written to."""
    array = values_of(tensor).asnumpy()
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


def dtype_name(tensor: Any) -> str:
    """Return the format of a MindSpore tensor: `float32`, `bfloat16`, ..."""
    return str(values_of(tensor).dtype).lower().rpartition(".")[2].replace("tensor[", "").rstrip("]")


def _norm(tensor: Any) -> float:
    values = host(tensor).reshape(-1)
    if values.dtype.itemsize < 4 or values.dtype.kind != "f":
        values = values.astype(np.float32)
    with np.errstate(all="ignore"):
        return math.sqrt(float(np.dot(values, values)))
