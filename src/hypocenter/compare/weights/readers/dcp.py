"""torch.distributed.checkpoint: a folder with .metadata and .distcp files; also Megatron-Core's torch_dist format."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from numpy.typing import NDArray

from hypocenter.compare.weights.archive import open_archive
from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Box, Checkpoint, CheckpointError, Tensor
from hypocenter.compare.weights.elements import STORED
from hypocenter.compare.weights.folder import settings_beside, settings_of
from hypocenter.compare.weights.readers.torch_file import CONTAINERS
from hypocenter.compare.weights.unpickler import AT_MOST_BYTES, DType, PlainObject, TensorRef, loads
from hypocenter.compare.weights.views import Patch, Tiled, one_of

_NO_WEIGHTS = re.compile(
    r"^(optimizer|optim|optimizers|lr_scheduler|opt_param_scheduler|dataloader|train_state|rng_state|rerun_state_machine)\b"
)
_STACKED = re.compile(r"(^|\.)layers\.(?=[^\d.])")  # Megatron-Core stacks the layers of a network into one tensor


def accepts(path: Path) -> bool:
    """Return whether it is a folder with .metadata."""
    return (path / ".metadata").is_file()


@reader("dcp", order=10, accepts=accepts)
def read(path: Path) -> Checkpoint:
    """A folder that torch.distributed.checkpoint wrote, or Megatron-Core as torch_dist."""
    metadata = _metadata(path)
    known, places = metadata.get("state_dict_metadata"), _places(path, metadata)
    if not isinstance(known, dict):
        raise CheckpointError("the metadata lists no tensors", where=str(path / ".metadata"))
    names = _names(known, metadata.get("planner_data"))  # type: ignore[arg-type]
    tensors: dict[str, Tensor] = {}
    for key, name in names.items():
        tensor = _tensor(path, key, known[key], places.get(key, {}))
        tensors.update(_unstacked(name, tensor))
    left = sorted({str(key).partition(".")[0] for key in known if key not in names})  # type: ignore[arg-type]
    notes = (f"not read: {', '.join(left)}"[:200],) if left else ()
    return Checkpoint(path=path, kind="dcp", tensors=tensors, settings=_settings(path), notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard(Tensor):
    """A torch.save'd tensor in the middle of a .distcp file; it is opened when it is read."""

    path: Path
    start: int
    size: int
    name: str

    def read(self, box: Box) -> NDArray[Any]:
        """Open the shard, check that it is what the metadata says, and read the box."""
        archive = open_archive(self.path, self.start, self.size)
        if not isinstance(archive.content, TensorRef):
            raise CheckpointError("no tensor where the metadata says", where=f"{self.path}: {self.name}")
        tensor = archive.tensor(archive.content, self.name)
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            why = f"{tensor.dtype}{list(tensor.shape)}, not {self.dtype}{list(self.shape)}"
            raise CheckpointError("a shard is not what the metadata says", where=f"{self.path}: {self.name}", why=why)
        return tensor.read(box)


def _metadata(path: Path) -> PlainObject:
    file = path / ".metadata"
    if file.stat().st_size > AT_MOST_BYTES:
        raise CheckpointError("the metadata is too large", where=str(file))
    found = loads(file.read_bytes(), str(file))
    if not isinstance(found, PlainObject) or not found.kind.endswith(".Metadata"):
        raise CheckpointError("no metadata of torch.distributed.checkpoint", where=str(file))
    return found


def _places(path: Path, metadata: PlainObject) -> dict[str, dict[tuple[int, ...], tuple[Path, int, int]]]:
    """Return for each tensor, by the offset of its shards, file, first byte and number of bytes."""
    found: dict[str, dict[tuple[int, ...], tuple[Path, int, int]]] = defaultdict(dict)
    stored = metadata.get("storage_data")
    for index, info in stored.items() if isinstance(stored, dict) else ():  # type: ignore[union-attr]
        if not isinstance(index, PlainObject) or not isinstance(info, PlainObject):
            raise CheckpointError("the metadata is damaged", where=str(path / ".metadata"), why="of a shard's place")
        file, start, size = info.get("relative_path"), info.get("offset"), info.get("length")
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or "\\" in file
            or "\0" in file
            or file in ("", ".", "..")
        ):
            raise CheckpointError("the metadata names a file outside its folder", where=str(path), why=repr(file)[:200])
        if type(start) is not int or type(size) is not int or start < 0 or size < 0:
            raise CheckpointError("the metadata is damaged", where=str(path / ".metadata"), why=f"{start}, {size}")
        if info.get("transform_descriptors"):
            raise CheckpointError("a compressed checkpoint", where=str(path / file), fix="save it without extensions")
        offset = index.get("offset")
        found[str(index.get("fqn"))][tuple(offset) if offset is not None else ()] = (path / file, start, size)
    return found


def _names(known: dict[Any, Any], planned: Any) -> dict[str, str]:
    """Return the keys of the network's tensors, and names: those under `model` or the like, else no optimizers."""
    tensors = [key for key, entry in known.items() if isinstance(entry, PlainObject) and entry.get("size") is not None]
    paths = {key: _path(key, planned) for key in tensors}
    inside: dict[str, str] = {}
    for key, parts in paths.items():
        at = next((i for i, part in enumerate(parts[:-1]) if part in CONTAINERS), None) if len(parts) > 1 else None
        if at is not None and not any(_NO_WEIGHTS.match(part) for part in parts[:at]):
            inside[key] = ".".join(parts[at + 1 :])
    return inside or {key: key for key in tensors if not _NO_WEIGHTS.match(key)}


def _path(key: str, planned: Any) -> tuple[str, ...]:
    parts = planned.get(key) if isinstance(planned, dict) else None  # type: ignore[union-attr]
    return tuple(str(part) for part in parts) if isinstance(parts, tuple) else (key,)  # type: ignore[union-attr]


def _tensor(path: Path, key: str, entry: PlainObject, places: dict[tuple[int, ...], tuple[Path, int, int]]) -> Tensor:
    where = f"{path / '.metadata'}: {key}"
    properties, shape = entry.get("properties"), entry.get("size")
    dtype = properties.items[0] if isinstance(properties, PlainObject) and properties.items else None
    dtype = properties.get("dtype") if dtype is None and isinstance(properties, PlainObject) else dtype
    if not isinstance(dtype, DType) or dtype.name not in STORED or not _is_shape(shape):
        raise CheckpointError("the metadata is damaged", where=where, why="of a tensor's format or shape")
    patches: list[Patch] = []
    for chunk in entry.get("chunks") or ():
        found = (chunk.get("offsets"), chunk.get("sizes")) if isinstance(chunk, PlainObject) else (None, None)
        offset, size = (tuple(numbers) if _is_shape(numbers) else None for numbers in found)
        if offset is None or size is None or not len(offset) == len(size) == len(shape):
            raise CheckpointError("the metadata is damaged", where=where, why="of a shard's place")
        if any(at + n > total for at, n, total in zip(offset, size, shape, strict=True)):
            raise CheckpointError("a shard lies outside its tensor", where=where, why=f"{offset} + {size} of {shape}")
        if 0 in size:
            continue
        place = places.get(tuple(offset)) or (places.get(()) if not any(offset) else None)
        if place is None:
            raise CheckpointError("a shard is in no file", where=where, why=f"offset {tuple(offset)}")
        file, start, n = place
        if not file.is_file() or start + n > file.stat().st_size:
            raise CheckpointError("a shard's file is missing or cut off", where=str(file), fix="copy all files again")
        shard = _Shard(shape=tuple(size), dtype=dtype.name, path=file, start=start, size=n, name=key)
        patches.append(Patch(offset=tuple(offset), tensor=shard))
    held = sum(patch.tensor.n for patch in patches)
    tensor = Tiled(shape=tuple(shape), dtype=dtype.name, patches=tuple(patches))
    if held < tensor.n:
        raise CheckpointError("shards are missing", where=where, why=f"{held:,} of {tensor.n:,} elements are stored")
    return tensor


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, (tuple, list)) and all(type(n) is int and 0 <= n < 1 << 40 for n in value)  # type: ignore[union-attr]


def _unstacked(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a tensor of stacked layers as one tensor for each layer; others as they are."""
    if not _STACKED.search(name) or len(tensor.shape) < 2 or tensor.shape[0] == 0:
        return {name: tensor}
    return {_STACKED.sub(rf"\1layers.{i}.", name, count=1): one_of(tensor, i) for i in range(tensor.shape[0])}


def _settings(path: Path) -> dict[str, int]:
    """Read heads and groups from Megatron's arguments in common.pt, or from a config.json beside."""
    if not (path / "common.pt").is_file():
        return settings_beside(path)
    try:
        content: Any = open_archive(path / "common.pt").content
    except (CheckpointError, OSError):
        return {}
    arguments = content.get("args") if isinstance(content, dict) else None  # type: ignore[union-attr]
    return settings_of(arguments.attributes) if isinstance(arguments, PlainObject) else {}
