"""safetensors: one file, shards with an index, or a folder of files. The header is checked, not trusted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, StoredTensor, Tensor, n_bytes, row_major
from hypocenter.compare.weights.elements import SAFETENSORS
from hypocenter.compare.weights.folder import indexed_files, settings_beside

_AT_MOST_HEADER = 100_000_000  # bytes: the limit of the safetensors library itself


def accepts(path: Path) -> bool:
    """A folder with such files, an index of them, or a file that begins with a header."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json"))
    if path.name.endswith(".safetensors.index.json"):
        return True
    with path.open("rb") as file:
        start = file.read(9)
    return path.suffix == ".safetensors" or (len(start) == 9 and start[8:] == b"{" and start[:4] != b"PK\3\4")


@reader("safetensors", order=30, accepts=accepts)
def read(path: Path) -> Checkpoint:
    """A .safetensors file, its index, or a folder of them."""
    tensors: dict[str, Tensor] = {}
    for file, names in indexed_files(path, "*.safetensors").items():
        held = read_file(file)
        for name in held if names is None else names:
            if name not in held:
                raise CheckpointError("the index names a tensor that its file has not", where=f"{file}: {name[:200]}")
            if name in tensors:
                fix = "give one file, or consolidate the shards of torch's distributed checkpoint"
                raise CheckpointError("two files hold the same tensor", where=f"{file}: {name[:200]}", fix=fix)
            tensors[name] = held[name]
    return Checkpoint(path=path, kind="safetensors", tensors=tensors, settings=settings_beside(path))


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file. Raises CheckpointError when its header cannot be true."""
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
        return {
            name: _tensor(path, entry, 8 + n_header, size)
            for name, entry in header.items()  # type: ignore[union-attr]
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError("the safetensors header is damaged", where=str(path), why=why) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _tensor(path: Path, entry: dict[str, Any], base: int, size: int) -> Tensor:
    if entry["dtype"] not in SAFETENSORS:
        raise ValueError(f"unknown format {entry['dtype']!r}")
    dtype, shape = SAFETENSORS[entry["dtype"]], tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, start, stop)) or len(shape) > 64:
        raise ValueError(f"shape {shape}, bytes {start} to {stop}")
    if math.prod(shape) > size * 8 or n_bytes(shape, dtype) != stop - start or base + stop > size:
        raise ValueError(f"shape {shape} of {dtype} is not in bytes {start} to {stop} of a file of {size:,}")
    return StoredTensor(shape=shape, dtype=dtype, path=path, offset=base + start, strides=row_major(shape))
