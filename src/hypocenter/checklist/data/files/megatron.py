"""Megatron-LM's indexed dataset: `X.idx` says where each sequence of `X.bin` lies.

Layout: Megatron-LM, megatron/core/datasets/indexed_dataset.py (`_IndexWriter`): magic, version (u64), code of the type
(u8), number of sequences (u64), number of document indices (u64), lengths (i32), byte offsets (i64), document indices
(i64), and with several modes one i8 for each sequence. All little-endian.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.checklist.data.files.data_file import DataFile, DataFileError

KIND = "Megatron indexed dataset"
_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_VERSION = 1
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}  # indexed_dataset.DType
_SUFFIXES = (".idx", ".bin")


def accepts(path: Path) -> bool:
    """Return whether it is the index, the data beside one, or the name of both without suffix."""
    if not path.name or path.is_dir():
        return False
    try:
        with _parts(path)[0].open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def open_file(path: Path) -> DataFile:
    """Open the sequences as samples.

    Raises:
        DataFileError: damaged, of another version, or one of the two files is missing.
    """
    index_path, data_path = _parts(path)
    try:
        index = _mapped(index_path)
        data = _mapped(data_path)
    except OSError as error:
        fix = "keep X.idx and X.bin in one folder"
        raise DataFileError("a file is missing", where=str(error.filename), why=str(error.strerror), fix=fix) from None
    dtype, lengths, offsets, documents = _index(index, index_path)
    _check(lengths, offsets, documents, dtype.itemsize, data.size, index_path)

    def read(sample: int, start: int, stop: int) -> npt.NDArray[Any]:
        at = int(offsets[sample])
        return data[at + start * dtype.itemsize : at + stop * dtype.itemsize].view(dtype)

    return DataFile(
        kind=KIND, path=index_path, dtype=dtype, lengths=lengths.astype(np.int64), read=read,
        n_documents=max(len(documents) - 1, 0),
    )  # fmt: skip


def _parts(path: Path) -> tuple[Path, Path]:
    stem = path.with_suffix("") if path.suffix in _SUFFIXES else path
    return stem.with_name(f"{stem.name}.idx"), stem.with_name(f"{stem.name}.bin")


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r")


def _index(raw: npt.NDArray[np.uint8], path: Path) -> tuple[np.dtype[Any], Any, Any, Any]:
    if raw.size < _HEAD.size:
        raise _damaged(path, f"{raw.size} bytes are no header")
    magic, version, code, n, n_documents = _HEAD.unpack(raw[: _HEAD.size].tobytes())
    if magic != _MAGIC or version != _VERSION:
        raise _damaged(path, f"version {version} is not read" if magic == _MAGIC else "it begins with other bytes")
    if code not in _TYPES:
        raise _damaged(path, f"no type has the code {code}")
    needed = _HEAD.size + 12 * n + 8 * n_documents
    if raw.size not in (needed, needed + n):
        why = f"{n:,} sequences and {n_documents:,} document indices need {needed:,} bytes, not {raw.size:,}"
        raise _damaged(path, why)
    ends = np.cumsum([_HEAD.size, 4 * n, 8 * n, 8 * n_documents]).tolist()
    lengths, offsets, documents = (
        raw[start:end].view(dtype) for start, end, dtype in zip(ends[:-1], ends[1:], ("<i4", "<i8", "<i8"), strict=True)
    )
    return np.dtype(_TYPES[code]), lengths, offsets, documents


def _check(lengths: Any, offsets: Any, documents: Any, itemsize: int, n_bytes: int, path: Path) -> None:
    """Check that every sequence lies in the data; by division, since a sum of hostile numbers could wrap around."""
    room = (n_bytes - np.clip(offsets, 0, n_bytes)) // itemsize
    wrong = (lengths < 0) | (offsets < 0) | (lengths > room)
    if wrong.any():
        raise _damaged(path, f"sequence {int(wrong.argmax()):,} lies outside the {n_bytes:,} bytes of data")
    if int(lengths.sum(dtype=np.int64)) > n_bytes // itemsize:
        raise _damaged(path, "sequences overlap: they hold more values than the data")
    if documents.size and (int(documents.min()) < 0 or int(documents.max()) > len(lengths)):
        raise _damaged(path, "a document index points at no sequence")


def _damaged(path: Path, why: str) -> DataFileError:
    return DataFileError("cannot read the index of the data", where=str(path), why=why)
