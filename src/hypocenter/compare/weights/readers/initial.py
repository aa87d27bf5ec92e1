"""A recording made with `run --save-initial-weights`: what its ranks wrote, parts of a tensor put together again."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Tensor
from hypocenter.compare.weights.safetensors_file import read_header
from hypocenter.compare.weights.views import Patch, Tiled
from hypocenter.record.layout import INITIAL_WEIGHTS_FILE, RUN_FILE, rank_directories
from hypocenter.record.weights_file import About

_AT_MOST_HEADER = 100_000_000  # bytes: the limit of the safetensors library itself


def accepts(path: Path) -> bool:
    """Return whether it is a run directory with saved initial weights."""
    return path.is_dir() and ((path / RUN_FILE).exists() or bool(rank_directories(path))) and bool(_files(path))


@reader("recording", order=5, accepts=accepts)
def read(path: Path) -> Checkpoint:
    """A recording made with --save-initial-weights."""
    whole: dict[str, Tensor] = {}
    parts: dict[str, list[Patch]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    settings: dict[str, int] = {}
    tied: dict[str, str] = {}
    for file in _files(path):
        about = _about(file)
        settings |= about.settings
        tied |= about.tied
        for name, tensor in read_header(file).tensors.items():
            part = about.parts.get(name)
            if part is None:
                whole.setdefault(name, tensor)
            else:
                shapes[name] = tuple(part.shape)
                patches = parts.setdefault(name, [])
                if all(patch.offset != tuple(part.offset) for patch in patches):  # replicas write the same part
                    patches.append(Patch(offset=tuple(part.offset), tensor=tensor))
    for name, patches in parts.items():
        if name in whole:  # a rank holds all of it: it is too small to be cut
            continue
        if sum(patch.tensor.n for patch in patches) != math.prod(shapes[name]):
            raise CheckpointError(
                "not all parts of a tensor are there", where=f"{path}: {name}",
                why=f"{sum(patch.tensor.n for patch in patches):,} of {math.prod(shapes[name]):,} elements",
                fix="copy the folders of all ranks",
            )  # fmt: skip
        whole[name] = Tiled(shape=shapes[name], dtype=patches[0].tensor.dtype, patches=tuple(patches))
    whole |= {alias: whole[name] for alias, name in tied.items() if name in whole and alias not in whole}
    return Checkpoint(path=path, kind="recording", tensors=whole, settings=settings)


def _files(path: Path) -> list[Path]:
    return [file for folder in rank_directories(path).values() if (file := folder / INITIAL_WEIGHTS_FILE).is_file()]


def _about(path: Path) -> About:
    try:
        with path.open("rb") as file:
            n = int.from_bytes(file.read(8), "little")
            if n > _AT_MOST_HEADER:
                raise ValueError("its header is longer than any")
            header = msgspec.json.decode(file.read(n), type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(header["__metadata__"], type=dict[str, str])
        return msgspec.json.decode(texts["hypocenter"], type=About)
    except (OSError, ValueError, KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError("not the file of this recording", where=str(path), why=str(error)[:200]) from error
