"""Megatron-LM's own checkpoints: a folder per tensor- and pipeline-parallel rank, merged into whole tensors."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from hypocenter.compare.weights.archive import Archive
from hypocenter.compare.weights.catalogue import reader
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Tensor, boxes
from hypocenter.compare.weights.folder import settings_of
from hypocenter.compare.weights.readers import dcp
from hypocenter.compare.weights.readers.torch_file import open_torch, tensors_of
from hypocenter.compare.weights.unpickler import PlainObject
from hypocenter.compare.weights.views import joined, shares

_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?$")
_FILES = ("model_optim_rng.pt", "model_rng.pt", "model_states.pt")
_LATEST = "latest_checkpointed_iteration.txt"
_LAYER = re.compile(r"(^|\.)layers\.(\d+)(?=\.)")
_GROUPED = 2.0  # checkpoint_version from which fused QKV lies group by group
_ROWS = re.compile(
    r"(^|\.)(word_embeddings|word_embeddings_for_head|output_layer|lm_head)\.(weight|bias)$"
    r"|\.(linear_qkv|linear_q|linear_kv|linear_k|linear_v|query_key_value|query|key_value|linear_fc1|dense_h_to_4h)\.(weight|bias)$"
    r"|\.(linear_q_up_proj|linear_kv_up_proj|linear_q_proj)\.weight$|\.(q|k)_layernorm_cut\.weight$"
)
_COLUMNS = re.compile(r"\.(linear_proj|linear_fc2|dense|dense_4h_to_h)\.weight$")
_FIRST = re.compile(r"\.(linear_fc1|dense_h_to_4h)\.(weight|bias)$")
_SECOND = {"linear_fc1": "linear_fc2", "dense_h_to_4h": "dense_4h_to_h"}


def accepts(path: Path) -> bool:
    """Return whether it is a folder of mp_rank folders, or one above it that says which is the latest."""
    return path.is_dir() and (bool(_rank_folders(path)) or (path / _LATEST).is_file())


@reader("megatron", order=20, accepts=accepts)
def read(path: Path) -> Checkpoint:
    """A folder of Megatron-LM: mp_rank_00[_000]/model_optim_rng.pt, or the folder above it."""
    folder = path if _rank_folders(path) else _latest(path)
    if dcp.accepts(folder):
        return dcp.read(folder)
    archives = _archives(folder)
    notes: list[str] = []
    stages: dict[tuple[int, int], list[dict[str, Tensor]]] = defaultdict(list)  # (chunk, pp) -> tensors of each tp
    for (pp, _), archive in sorted(archives.items()):
        for chunk, content in _chunks(archive):
            stages[(chunk, pp)].append(tensors_of(archive, content))
    tensors: dict[str, Tensor] = {}
    n_layers = 0
    for stage in sorted(stages):
        found = _stage(stages[stage], notes)
        for name, tensor in found.items():
            tensors.setdefault(_shifted(name, n_layers), tensor)  # tied embeddings are on the last stage too
        n_layers += _n_layers(found)
    first: Any = next(iter(archives.values())).content
    _require_order(first, folder)
    arguments = first.get("args")
    settings = settings_of(arguments.attributes) if isinstance(arguments, PlainObject) else {}
    n_tp, n_pp = (len({key[i] for key in archives}) for i in (1, 0))
    notes.insert(0, f"merged of {n_tp} tensor-parallel times {n_pp} pipeline-parallel ranks")
    return Checkpoint(path=path, kind="megatron", tensors=tensors, settings=settings, notes=tuple(notes))


def _rank_folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.glob("mp_rank_*") if _RANK.match(folder.name) and folder.is_dir())


def _latest(path: Path) -> Path:
    said = (path / _LATEST).read_text(encoding="utf-8", errors="replace").strip()[:40]
    folder = path / ("release" if said == "release" else f"iter_{int(said):07d}" if said.isdecimal() else "?")
    if not folder.is_dir():
        why = f"{_LATEST} says {said!r}, which is not there"
        raise CheckpointError("the latest checkpoint is missing", where=str(path), why=why, fix="give its folder")
    return folder


def _archives(folder: Path) -> dict[tuple[int, int], Archive]:
    """Open the files of all ranks, by (pp, tp). Raises CheckpointError when ranks are missing."""
    found: dict[tuple[int, int], Archive] = {}
    for place in _rank_folders(folder):
        match = _RANK.match(place.name)
        assert match
        tp, pp, ep = (int(number or 0) for number in match.groups())
        if ep or match[3]:
            raise CheckpointError("experts spread over ranks are not merged", where=str(place))
        file = next((place / name for name in _FILES if (place / name).is_file()), None)
        if file is None:
            raise CheckpointError("a rank has no weights", where=str(place), why=f"none of {', '.join(_FILES)}")
        archive = open_torch(file)
        if not isinstance(archive.content, dict):
            raise CheckpointError("no checkpoint of Megatron-LM", where=str(file))
        found[(pp, tp)] = archive
    n_tp, n_pp = (1 + max((key[i] for key in found), default=0) for i in (1, 0))
    missing = [(pp, tp) for pp in range(min(n_pp, 4096)) for tp in range(min(n_tp, 4096)) if (pp, tp) not in found]
    if missing:
        what = f"tp rank {missing[0][1]} of pipeline stage {missing[0][0]}"
        raise CheckpointError("a rank is missing", where=str(folder), why=what, fix="copy all mp_rank folders")
    return found


def _chunks(archive: Archive) -> list[tuple[int, Any]]:
    """Return the chunks of the model that a rank holds: one, or `model0`, `model1` of interleaved stages."""
    content = archive.content
    single = content.get("model", content.get("module"))
    if single is not None:
        return [(0, single)]
    found = [(int(str(key)[5:]), content[key]) for key in content if re.fullmatch(r"model\d{1,4}", str(key))]
    if not found:
        raise CheckpointError("no model in the checkpoint of a rank", where=str(archive.path))
    return sorted(found, key=lambda entry: entry[0])


def _stage(ranks: list[dict[str, Tensor]], notes: list[str]) -> dict[str, Tensor]:
    first = ranks[0]
    for name in first:
        if any(name not in rank for rank in ranks):
            raise CheckpointError("a tensor is not on all tensor-parallel ranks", where=name)
    return {
        name: merged(name, [rank[name] for rank in ranks], first, notes)
        for name in first
        if not name.endswith("_extra_state")
    }


def _n_layers(tensors: dict[str, Tensor]) -> int:
    numbers = [int(match[2]) for name in tensors if (match := _LAYER.search(name))]
    return 1 + max(numbers) if numbers else 0


def _shifted(name: str, n_before: int) -> str:
    """Return the name with the layer's number counted over all stages."""
    return _LAYER.sub(lambda match: f"{match[1]}layers.{int(match[2]) + n_before}", name, count=1)


def _require_order(content: dict[str, Any], folder: Path) -> None:
    version = content.get("checkpoint_version", _GROUPED)
    if isinstance(version, (int, float)) and version < _GROUPED and "args" in content:
        raise CheckpointError(
            f"a checkpoint of version {version:g}", where=str(folder),
            why="before version 2 fused QKV lay in another order", fix="let Megatron-LM load and save it once",
        )  # fmt: skip


def merged(name: str, parts: list[Tensor], others: dict[str, Tensor], notes: list[str]) -> Tensor:
    """Merge a tensor of all tensor-parallel ranks to one.

    Args:
        name: of the parameter.
        parts: in the order of the ranks.
        others: tensors of the first rank, by name: they tell whether an MLP has a gate.
        notes: takes what is remarkable: copies that differ.

    Raises:
        CheckpointError: the shapes of the ranks do not go together.
    """
    if len(parts) == 1:
        return parts[0]
    dim = 0 if _ROWS.search(name) else 1 if _COLUMNS.search(name) else None
    if dim is None:
        if any(part.shape != parts[0].shape for part in parts) or not _are_equal(parts):
            notes.append(f"ranks hold different copies of {name}: the first rank's is read")
        return parts[0]
    rest = {(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts}
    if len(rest) > 1 or any(len(part.shape) <= dim for part in parts):
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise CheckpointError("shards do not fit together", where=name, why=shapes)
    if not _FIRST.search(name) or not _has_gate(name, parts[0], others):
        return joined(tuple(parts), dim)
    halves = [shares(part, (part.shape[0] // 2,) * 2) for part in parts]  # each rank holds its gate, then its up
    return joined(tuple(half[0] for half in halves) + tuple(half[1] for half in halves))


def _has_gate(name: str, part: Tensor, others: dict[str, Tensor]) -> bool:
    """Return whether the first linear of an MLP has twice the rows that the second takes in."""
    module = name.rpartition(".")[0]
    stem, _, leaf = module.rpartition(".")
    second = others.get(f"{stem}.{_SECOND[leaf]}.weight")
    return second is not None and len(second.shape) == 2 and part.shape[0] == 2 * second.shape[1]


def _are_equal(parts: list[Tensor]) -> bool:
    return all(
        np.array_equal(parts[0].read(box).view(np.uint8), part.read(box).view(np.uint8))
        for part in parts[1:]
        for box in boxes(part.shape)
        if parts[0].shape
    )
