"""A dump as msprobe writes it at level mix, of as many tensors as wanted: names, nesting, stacks and NaN tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

_LIBRARY = '"/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1811, in inner, \n ...'


def write_dump(root: Path, n_tensors: int, *, n_steps: int = 1) -> int:
    """Write step folders with `n_tensors` in all; how many there are."""
    total = 0
    for step in range(n_steps):
        folder = root / f"step{step}" / "rank0"
        folder.mkdir(parents=True)
        data, parents, stacks = _data(n_tensors // n_steps, random.Random(step))
        head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (folder / "dump.json").write_text(json.dumps(head, indent=1), encoding="utf-8")
        (folder / "construct.json").write_text(json.dumps(parents, indent=1), encoding="utf-8")
        (folder / "stack.json").write_text(json.dumps(stacks, indent=1), encoding="utf-8")
        total += json.dumps(data).count('"Max"')
    return total


def _data(n_tensors: int, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    data: dict[str, Any] = {}
    parents: dict[str, Any] = {}
    names: list[str] = []
    held = layer = 0
    while held < n_tensors:
        block = f"Module.layers.{layer}.Block.forward.0"
        for i, kind in enumerate(("q", "k", "v", "o", "up", "down")):
            module, api = f"Module.layers.{layer}.{kind}.Linear", f"Functional.linear.{6 * layer + i}"
            weight = _tensor(rng, (1024, 1024))
            data[f"{api}.forward"] = _entry([_tensor(rng, (8, 512, 1024)), weight, _tensor(rng, (1024,))], rng)
            data[f"{module}.forward.0"] = _entry([_tensor(rng, (8, 512, 1024))], rng) | {
                "parameters": {"weight": weight}
            }
            parents |= {f"{api}.forward": f"{module}.forward.0", f"{module}.forward.0": block}
            data[f"{module}.backward.0"] = {
                "input": [_tensor(rng, (8, 512, 1024))],
                "output": [_tensor(rng, (8, 512, 1024))],
            }
            names += [f"{api}.forward", f"{module}.forward.0"]
            held += 9
        data[block] = _entry([_tensor(rng, (8, 512, 1024))], rng)
        parents[block] = None
        held += 2
        layer += 1
    frames = [f"File {_LIBRARY}" for _ in range(12)] + ["File /home/me/train.py, line 12, in forward, \n y = self.q(x)"]
    stacks = {str(i): [names[i : i + 2], frames] for i in range(0, len(names), 2)}
    return data, parents, stacks


def _entry(args: list[Any], rng: random.Random) -> dict[str, Any]:
    number = {"type": "float", "value": 1e-05}
    return {"input_args": [*args, number], "input_kwargs": {}, "output": [_tensor(rng, (8, 512, 1024))]}


def _tensor(rng: random.Random, shape: tuple[int, ...]) -> dict[str, Any]:
    high, low = rng.gauss(4, 1), rng.gauss(-4, 1)
    norm = float("inf") if rng.random() < 0.01 else abs(rng.gauss(300, 50))
    return {
        "type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": list(shape), "Max": high, "Min": low,
        "Mean": float("nan") if norm == float("inf") else rng.gauss(0, 0.1), "Norm": norm, "requires_grad": True,
    }  # fmt: skip
