"""Tensors to files, part by part: one .ckpt, one .safetensors, or shards of safetensors with their index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hypocenter.compare.weights.checkpoint import Tensor, boxes, n_bytes
from hypocenter.compare.weights.ckpt_file import write_ckpt
from hypocenter.compare.weights.elements import SAFETENSORS, STORED
from hypocenter.errors import ExistsError, HypocenterError

_NAMES = {dtype: name for name, dtype in SAFETENSORS.items()}
_ALIGNED = 8  # bytes: the header is filled up with spaces, as the library does
INDEX = "model.safetensors.index.json"


def write_weights(tensors: dict[str, Tensor], out: Path, *, max_shard_bytes: int) -> list[Path]:
    """Write the tensors in order, as the ending of `out` says; a folder gets shards of limited size, and their index.

    Raises:
        ExistsError: `out` is there already.
        HypocenterError: it cannot be written.
    """
    if out.exists():
        raise ExistsError("the output exists already", where=str(out), fix="give another with -o, or remove it")
    try:
        if out.suffix in (".ckpt", ".safetensors"):
            out.parent.mkdir(parents=True, exist_ok=True)
            if out.suffix == ".ckpt":
                write_ckpt(tensors, out)
            else:
                write_file(tensors, out, {})
            return [out]
        out.mkdir(parents=True)
        return _write_shards(tensors, out, max_shard_bytes)
    except OSError as error:
        raise HypocenterError(
            "the weights were not written", where=str(out), why=error.strerror or str(error)
        ) from error


def _write_shards(tensors: dict[str, Tensor], out: Path, limit: int) -> list[Path]:
    shards = _shards(tensors, limit)
    if len(shards) == 1:
        write_file(shards[0], out / "model.safetensors", {})
        return [out / "model.safetensors"]
    files: list[Path] = []
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        files.append(out / f"model-{number:05d}-of-{len(shards):05d}.safetensors")
        index |= dict.fromkeys(shard, files[-1].name)
        write_file(shard, files[-1], {})
    total = sum(n_bytes(tensor.shape, tensor.dtype) for tensor in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2, ensure_ascii=False)
    (out / INDEX).write_text(text + "\n", encoding="utf-8")
    return [*files, out / INDEX]


def _shards(tensors: dict[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    held = 0
    for name, tensor in tensors.items():
        size = n_bytes(tensor.shape, tensor.dtype)
        if shards[-1] and held + size > limit:
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        held += size
    return shards


def write_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write one file, which appears when complete. Raises OSError, CheckpointError; HypocenterError: unknown format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise HypocenterError(f"safetensors has no {tensor.dtype}", where=name)
        end = at + n_bytes(tensor.shape, tensor.dtype)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    unfinished = path.with_name(f".{path.name}.part")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            little = np.dtype(STORED[tensor.dtype]).newbyteorder("<")
            for box in boxes(tensor.shape):
                file.write(np.ascontiguousarray(tensor.read(box)).astype(little, copy=False).tobytes())
    unfinished.replace(path)
