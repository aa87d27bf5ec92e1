"""Batches of real text without a framework: the topics of Python's manual as bytes, read by programs of either.

python text_arrays.py tokens.npy    # write the text down: interpreters of other versions have other topics
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

VOCABULARY = 256


def text() -> Any:
    """All topics, a number for each byte."""
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode("utf-8"), np.uint8)


def batches(tokens: str, n_steps: int, *, size: int, length: int, shift: int = 1, seed: int = 1) -> Iterator[Any]:
    """`n_steps` pairs of (tokens, the tokens `shift` behind them), int32, each `size` by `length`.

    Args:
        tokens: the .npy file that they are read from; this Python's own topics when empty.
    """
    found = np.load(tokens) if tokens else text()
    chance = np.random.default_rng(seed)
    for _ in range(n_steps):
        starts = chance.integers(0, len(found) - length - 1, size)
        rows = np.stack([found[at : at + length + 1] for at in starts]).astype(np.int32)
        yield rows[:, :length].copy(), rows[:, shift : shift + length].copy()


if __name__ == "__main__":
    np.save(Path(sys.argv[1]), text())
