"""Values of MindSpore's tensors on the host, and in files: see hypocenter.tap.keeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.tap.keeper import Keeper
from hypocenter.tap.mindspore.names import own_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """A copy of a tensor on the host: its format in torch's words, and its numbers (bfloat16: as uint16)."""

    dtype: str
    array: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """The size of the numbers, in bytes."""
        return self.array.nbytes


Write = Callable[[Mapping[str, Bits], Path, dict[str, str]], None]
"""Writes tensors and text to a safetensors file, that appears whole."""


class TensorKeeper(Keeper):
    """Copies values of MindSpore's tensors to the host, and writes them by `write`."""

    def __init__(self, rank_dir: Path, *, budget_bytes: int, write: Write, warn: Callable[[str], None]) -> None:
        super().__init__(rank_dir, budget_bytes=budget_bytes, warn=warn)
        self._to_file = write

    def on_host(self, tensor: Any, limit_bytes: int) -> Bits | None:
        """Return a copy; None if it is larger than the limit."""
        return None if int(tensor.nbytes) > limit_bytes else bits_of(tensor)

    def save(self, values: Mapping[str, Bits], path: Path, about: dict[str, str]) -> None:
        """Write copies and text to a file, which appears whole."""
        self._to_file(values, path, about)

    def flush(self, step: int, gradients: Mapping[int, Any]) -> list[Path]:
        """Write what was kept since the last call as values of `step`; return the files written.

        Args:
            gradients: id of a parameter -> its gradient.
        """
        return self._flush(
            step, lambda cell: ((k, p, gradients.get(id(p))) for k, p in own_parameters(cell).items() if p is not None)
        )


def bits_of(tensor: Any) -> Bits:
    """Copy a tensor to the host; complex numbers as pairs in a last dimension."""
    array = np.array(tensor.asnumpy(), order="C")
    if array.dtype.name == "bfloat16":
        return Bits(dtype="bfloat16", array=array.view(np.uint16))
    if array.dtype.kind == "c":
        parts = np.stack([np.real(array), np.imag(array)], axis=-1)
        return Bits(dtype=parts.dtype.name, array=parts)
    return Bits(dtype=array.dtype.name, array=array)
