"""What the metadata of a rank's initial-weights.safetensors say, under the key `hypocenter`, as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a tensor that lies over several ranks: the whole shape, and where this part starts."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a file of initial weights says of its tensors. Names are the user's."""

    parts: dict[str, Part] = field(default_factory=dict[str, Part])  # of tensors of which the file holds a part
    tied: dict[str, str] = field(default_factory=dict[str, str])  # further name -> the name under which it is held
    settings: dict[str, int] = field(default_factory=dict[str, int])  # num_attention_heads, num_query_groups, head_dim
