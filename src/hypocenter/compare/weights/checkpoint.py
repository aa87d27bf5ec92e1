"""What a reader of checkpoints gives: named tensors that are read by parts, and what is known of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hypocenter.compare.weights.tensor import Tensor
from hypocenter.errors import HypocenterError


class CheckpointError(HypocenterError):
    """A file that is no checkpoint, is damaged, or holds something that will not be executed."""

    slug = "bad-checkpoint"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All tensors of a network, by name, in the order of the files."""

    path: Path
    kind: str  # name of the reader
    tensors: dict[str, Tensor]
    settings: dict[str, int] = field(default_factory=dict[str, int])  # num_attention_heads, num_query_groups, head_dim
    notes: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Of all tensors."""
        from hypocenter.compare.weights.elements import item_bytes

        return sum(tensor.n * item_bytes(tensor.dtype) for tensor in self.tensors.values())
