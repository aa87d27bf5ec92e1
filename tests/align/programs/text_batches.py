"""Batches of real text: the topics of Python's manual as bytes, the same for every program that asks."""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import torch

VOCABULARY = 256


def batches(n_steps: int, *, size: int, length: int, seed: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`n_steps` pairs of (tokens, the tokens that follow them), each `size` by `length`."""
    text = "\n".join(topics[name] for name in sorted(topics))
    tokens = torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8).long()
    chance = torch.Generator().manual_seed(seed)
    for _ in range(n_steps):
        starts = torch.randint(0, len(tokens) - length - 1, (size,), generator=chance).tolist()
        rows = torch.stack([tokens[at : at + length + 1] for at in starts])
        yield rows[:, :-1], rows[:, 1:]
