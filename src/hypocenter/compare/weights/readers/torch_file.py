"""Files of torch.save (.bin, .pt, .pth): tensors and plain containers; whatever would be executed is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypocenter.compare.weights.archive import Archive, is_archive, open_archive
from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Tensor
from hypocenter.compare.weights.folder import indexed_files, settings_beside
from hypocenter.compare.weights.unpickler import TensorRef, walk

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
CONTAINERS = ("model", "state_dict", "model_state_dict", "module")
"""Under which training programs keep the weights beside optimizer and step."""
_OLD = (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",)  # magic number of torch.save before torch 1.6


def accepts(path: Path) -> bool:
    """Return whether it is a zip file, a file of the old format, or a folder of files so named."""
    if path.is_dir():
        return any(file.suffix in SUFFIXES for file in path.iterdir()) or any(path.glob("*.bin.index.json"))
    if path.name.endswith(".bin.index.json"):
        return True
    return is_archive(path) or path.suffix in SUFFIXES


@reader("torch", order=40, accepts=accepts)
def read(path: Path) -> Checkpoint:
    """A file of torch.save, an index of such files, or a folder of them."""
    tensors: dict[str, Tensor] = {}
    notes: list[str] = []
    for file in _files(path):
        for name, tensor in weights_of(open_torch(file), notes).items():
            if name in tensors:
                raise CheckpointError("two files hold the same tensor", where=f"{file}: {name}", fix="give one file")
            tensors[name] = tensor
    return Checkpoint(
        path=path, kind="torch", tensors=tensors, settings=settings_beside(path), notes=tuple(dict.fromkeys(notes))
    )


def open_torch(path: Path) -> Archive:
    """Open one file. Raises CheckpointError, also for what torch before 1.6 wrote."""
    if is_archive(path):
        return open_archive(path)
    with path.open("rb") as file:
        is_old = file.read(16).startswith(_OLD)
    why = "torch before 1.6 wrote it, or _use_new_zipfile_serialization=False" if is_old else "it is no zip file"
    fix = "load it with torch.load(path, weights_only=True) and save it again" if is_old else ""
    raise CheckpointError("a file that torch.save does not write today", where=str(path), why=why, fix=fix)


def weights_of(archive: Archive, notes: list[str]) -> dict[str, Tensor]:
    """Return the network's tensors: those under `model` or the like, else all. `notes` gets what was left out."""
    content: Any = archive.content
    if isinstance(content, dict):
        inside = next((key for key in CONTAINERS if isinstance(content.get(key), dict) and content[key]), None)  # type: ignore[union-attr]
        if inside:
            rest = [str(key) for key in content if key != inside]  # type: ignore[union-attr]
            notes += [f"only {inside!r} is read, not {', '.join(rest)}"[:200]] if rest else []
            content = content[inside]
    return tensors_of(archive, content)


def tensors_of(archive: Archive, content: Any) -> dict[str, Tensor]:
    """Return all tensors of nested containers, their names joined by dots."""
    found: dict[str, Tensor] = {}
    for path, leaf in walk(content):
        if isinstance(leaf, TensorRef):
            name = ".".join(path)
            found[name] = archive.tensor(leaf, name)
    return found


def _files(path: Path) -> list[Path]:
    if path.is_file() or any(path.glob("*.bin.index.json")):
        return list(indexed_files(path, "*.bin"))
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    weights = [file for file in found if not file.name.startswith(("optimizer", "scheduler", "training_args", "rng_"))]
    return weights or found
