"""`.npy`: a 1-D array is a stream of tokens, the rows of a 2-D array are samples. Mapped, never unpickled.

Format: numpy.lib.format, versions 1.0 to 3.0.
"""

from __future__ import annotations

import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.checklist.data.files.data_file import DataFile, DataFileError

KIND = "NumPy array"
_MAGIC = b"\x93NUMPY"
_FAULTS = (  # what NumPy raises on damaged headers, which it reads as a Python literal
    ValueError, OSError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, KeyError,
    IndexError, AttributeError, tokenize.TokenError,
)  # fmt: skip


def accepts(path: Path) -> bool:
    """Return whether the file begins as a `.npy` does."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def open_file(path: Path) -> DataFile:
    """Open the array as samples.

    Raises:
        DataFileError: damaged, or no 1-D or 2-D array of numbers.
    """
    array = _mapped(path)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2):
        why = f"it holds {array.dtype} of shape {array.shape}"
        raise DataFileError("no array of tokens or of samples", where=str(path), why=why, fix="save a 1-D or 2-D array")
    if array.ndim == 2 and array.shape[1] == 0 and len(array):
        raise DataFileError("samples without values", where=str(path), why=f"the shape is {array.shape}")
    is_stream = array.ndim == 1
    rows = array.reshape(1, -1) if is_stream else array
    return DataFile(
        kind=KIND, path=path, dtype=array.dtype, lengths=np.broadcast_to(np.int64(rows.shape[1]), rows.shape[:1]),
        read=lambda sample, start, stop: rows[sample, start:stop], is_stream=is_stream,
    )  # fmt: skip


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            if not _is_empty(path):
                raise
            array = np.load(path, allow_pickle=False)  # an array without values cannot be mapped
    except _FAULTS as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise DataFileError("cannot read the array", where=str(path), why=why) from None
    return array


def _is_empty(path: Path) -> bool:
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
    return 0 in shape and not dtype.hasobject
