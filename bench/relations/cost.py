"""What asking all relations costs: forwards, CPU time in units of a plain forward with loss, memory that is left."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
import transformers
from torch import nn

import hypocenter.session.observers.relations as observed
from bench.relations.families import FAMILIES, batch_of
from hypocenter.session.start import watch


def _middle() -> tuple[nn.Module, dict[str, Any]]:
    """12 million parameters, 1024 tokens."""
    sizes = {"vocab_size": 4000, "n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 128}
    ids = torch.randint(3, 4000, (8, 128))
    mask = (torch.arange(128) < torch.linspace(128, 64, 8).unsqueeze(1)).long()
    labels = ids.masked_fill(mask == 0, -100)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), {
        "input_ids": ids, "attention_mask": mask, "labels": labels,
    }  # fmt: skip


def _tiny(name: str) -> tuple[nn.Module, dict[str, Any]]:
    recipe = FAMILIES[name]
    return recipe.make(recipe.attention[0]), batch_of(recipe)


def held() -> int:
    """Bytes of all tensors that anybody holds."""
    gc.collect()
    alive = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in alive}.values())


def measured(model: nn.Module, batch: dict[str, Any]) -> tuple[int, float, float, int]:
    """Forwards, CPU seconds of the look and of one plain forward, and bytes that are held after three looks."""
    took: list[tuple[int, float]] = []
    inner = observed.look

    def look(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        looked = inner(*args, **kwargs)
        took.append((looked.n_forwards, time.process_time() - began))
        return looked

    observed.look = look
    optimizer, plain, bytes_held = torch.optim.SGD(model.parameters(), lr=0.01), list[float](), list[int]()
    try:
        with watch(model, optimizer, out=None, force=True, relations="1-3", audit="never"):
            for _ in range(8):  # at steps 3 and 4 the look for weights' averages has a copy of them
                began = time.process_time()
                loss = model(**batch).loss
                plain.append(time.process_time() - began)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del loss
                bytes_held.append(held())
    finally:
        observed.look = inner
    return took[-1][0], min(t for _, t in took), min(plain), bytes_held[-1] - bytes_held[0]


def run() -> int:
    """A line for each model."""
    torch.manual_seed(0)
    for name in ("gpt2", "llama", "bert", "t5", "resnet", "vit", "middle"):
        n, look_s, forward_s, left = measured(*(_middle() if name == "middle" else _tiny(name)))
        print(
            f"{name:8} {n:3} forwards, {look_s:7.3f} s = {look_s / forward_s:5.1f} plain forwards of {forward_s:.4f} s",
            f"{left} bytes left",
        )
    return 0
