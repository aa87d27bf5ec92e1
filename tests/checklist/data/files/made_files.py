"""Data files written byte by byte, as Megatron-LM's `_IndexWriter` does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def megatron(stem: Path, samples: Sequence[Sequence[int]], dtype: str = "int32", documents: int | None = None) -> Path:
    """Write `stem`.idx and `stem`.bin; every sequence is a document, or the first few are."""
    arrays = [np.asarray(sample, dtype=dtype) for sample in samples]
    lengths = np.array([len(array) for array in arrays], dtype="<i4")
    offsets = np.concatenate([[0], np.cumsum([array.nbytes for array in arrays])])[:-1].astype("<i8")
    n_documents = len(arrays) if documents is None else documents
    ends = np.arange(n_documents + 1, dtype="<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], len(arrays), len(ends))
    index = stem.with_name(f"{stem.name}.idx")
    index.write_bytes(head + lengths.tobytes() + offsets.tobytes() + ends.tobytes())
    stem.with_name(f"{stem.name}.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    return index
