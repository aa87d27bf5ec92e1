"""Heads and groups of a model, as its own configuration says: for tensors that are fused."""

from __future__ import annotations

from typing import Any

from hypocenter.compare.weights.folder import settings_of


def heads_in(config: Any) -> dict[str, int]:
    """Return num_attention_heads, num_query_groups and head_dim; empty where a configuration does not tell."""
    if config is None:
        return {}
    members = config if isinstance(config, dict) else dict(getattr(config, "__dict__", {}))
    inner = members.get("text_config")
    if inner is not None:
        members = {**members, **getattr(inner, "__dict__", {})}
    return settings_of({key: value for key, value in members.items() if type(value) is int})
