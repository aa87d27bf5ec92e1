"""Reads arrays (.npz) and prints their summaries by MindSpore, as JSON: [full, sampled, deferred] of each."""

from __future__ import annotations

import dataclasses
import json
import sys

import mindspore as ms
import numpy as np

from hypocenter.summary.reducers.mindspore import MindSporeReducer


def tensor_of(name: str, array: np.ndarray) -> ms.Tensor:
    if name.startswith("bfloat16"):  # bits
        return ms.Tensor((array.astype(np.uint32) << 16).view(np.float32)).astype(ms.bfloat16)
    return ms.Tensor(array)


held = np.load(sys.argv[1])
tensors = {name: tensor_of(name, held[name]) for name in held.files}
found: dict[str, list[dict[str, object]]] = {name: [] for name in tensors}
for options in ({"histogram": "full", "sketch": True}, {"sketch": True}, {"sketch": True, "defer_cpu": True}):
    reducer = MindSporeReducer(**options)
    for tensor in tensors.values():
        reducer.add(tensor)
    for name, summary in zip(tensors, reducer.drain(), strict=True):
        found[name].append(dataclasses.asdict(summary))
print(json.dumps(found))
