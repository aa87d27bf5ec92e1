"""One file of safetensors: its header is checked, not trusted, and values stay in the file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor, n_bytes, row_major
from hypocenter.compare.weights.elements import SAFETENSORS

_AT_MOST_HEADER = 100_000_000  # bytes: the limit of the safetensors library itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file holds: tensors by name, and the text that was stored with them."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Find the tensors of one file, which stay in it. Raises CheckpointError when its header cannot be true."""
    size = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(size - 8, _AT_MOST_HEADER):
            why = f"the header is said to have {n_header:,} bytes, the file has {size:,}"
            raise CheckpointError("no safetensors file, or cut off", where=str(path), why=why, fix="copy it again")
        text = file.read(n_header)
    try:
        header: Any = json.loads(text, object_pairs_hook=_once)
        if not isinstance(header, dict):
            raise ValueError("the header is no object")
        metadata = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
        tensors = {name: _tensor(path, entry, 8 + n_header, size) for name, entry in header.items()}
        return Header(tensors=tensors, metadata=metadata)
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError("the safetensors header is damaged", where=str(path), why=why) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _tensor(path: Path, entry: dict[str, Any], base: int, size: int) -> StoredTensor:
    if entry["dtype"] not in SAFETENSORS:
        raise ValueError(f"unknown format {entry['dtype']!r}")
    dtype, shape = SAFETENSORS[entry["dtype"]], tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, start, stop)) or len(shape) > 64:
        raise ValueError(f"shape {shape}, bytes {start} to {stop}")
    if math.prod(shape) > size * 8 or n_bytes(shape, dtype) != stop - start or base + stop > size:
        raise ValueError(f"shape {shape} of {dtype} is not in bytes {start} to {stop} of a file of {size:,}")
    return StoredTensor(shape=shape, dtype=dtype, path=path, offset=base + start, strides=row_major(shape))
