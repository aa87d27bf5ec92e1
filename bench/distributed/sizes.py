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
    "usual": Size(vocabulary=2000, width=192, n_layers=6, n_heads=6, n_rows=6, n_tokens=64),
    "tiny": Size(vocabulary=64, width=16, n_layers=1, n_heads=2, n_rows=2, n_tokens=8),  # to see that it runs
}
"""`usual` takes 200 to 500 ms a step and rank where four ranks share two cores."""
