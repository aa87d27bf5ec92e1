"""Along which dimension Megatron cuts each parameter over tensor-parallel ranks, by its name."""

from __future__ import annotations

import re

import numpy as np

from hypocenter.compare.weights.checkpoint import CheckpointError
from hypocenter.compare.weights.tensor import Tensor, boxes
from hypocenter.compare.weights.views import joined, shares

_ROWS = re.compile(
    r"(^|\.)(word_embeddings|word_embeddings_for_head|output_layer|lm_head)\.(weight|bias)$"
    r"|\.(linear_qkv|linear_q|linear_kv|linear_k|linear_v|query_key_value|query|key_value|linear_fc1|dense_h_to_4h)\.(weight|bias)$"
    r"|\.(linear_q_up_proj|linear_kv_up_proj|linear_q_proj)\.weight$|\.(q|k)_layernorm_cut\.weight$"
)
_COLUMNS = re.compile(r"\.(linear_proj|linear_fc2|dense|dense_4h_to_h)\.weight$")
_FIRST = re.compile(r"\.(linear_fc1|dense_h_to_4h)\.(weight|bias)$")
_SECOND = {"linear_fc1": "linear_fc2", "dense_h_to_4h": "dense_4h_to_h"}


def merged(name: str, parts: list[Tensor], others: dict[str, Tensor], notes: list[str]) -> Tensor:
    """One tensor of those of all tensor-parallel ranks.

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
    """Whether the first linear of an MLP has twice the rows that the second takes in."""
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
