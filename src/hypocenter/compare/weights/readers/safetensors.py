"""safetensors: one file, shards with an index, or a folder of files."""

from __future__ import annotations

from pathlib import Path

from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Tensor
from hypocenter.compare.weights.folder import indexed_files, settings_beside
from hypocenter.compare.weights.safetensors_file import read_header


def accepts(path: Path) -> bool:
    """Return whether it is a folder with such files, an index of them, or a file that begins with a header."""
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
        held = read_header(file).tensors
        for name in held if names is None else names:
            if name not in held:
                raise CheckpointError("the index names a tensor that its file has not", where=f"{file}: {name[:200]}")
            if name in tensors:
                fix = "give one file, or consolidate the shards of torch's distributed checkpoint"
                raise CheckpointError("two files hold the same tensor", where=f"{file}: {name[:200]}", fix=fix)
            tensors[name] = held[name]
    return Checkpoint(path=path, kind="safetensors", tensors=tensors, settings=settings_beside(path))
