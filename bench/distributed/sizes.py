"""Sizes of the model and its batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A GPT, and the batch of one rank."""

    vocabulary: int
    width: int
    n_layers: int
    n_heads: int
    n_rows: int
    n_tokens: int


SIZES = {
    "usual": Size(vocabulary=2000, width=192, n_layers=6, n_heads=6, n_rows=32, n_tokens=64),
    "short": Size(vocabulary=2000, width=192, n_layers=6, n_heads=6, n_rows=6, n_tokens=64),  # steps of 0.14 s of CPU
    "tiny": Size(vocabulary=64, width=16, n_layers=1, n_heads=2, n_rows=2, n_tokens=8),  # to see that it runs
}
"""`usual` takes about 0.6 s of CPU a step and rank; what recording adds does not depend on the batch."""
