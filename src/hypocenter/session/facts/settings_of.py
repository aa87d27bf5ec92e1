"""What is set on a module or cell as plain facts: its attributes, those of its configuration, names of functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypocenter.session.facts.plain import NOT_PLAIN, function_name, members, plain

_CONFIGS = ("config", "cfg", "args")  # what makers of models call the object that holds all their sizes
_PRIVATE = {"_attn_implementation_internal": "attn_implementation", "_attn_implementation": "attn_implementation"}
_NOT_SETTINGS = frozenset({"training", "transformers_version", "architectures", "id2label", "label2id"})
MAX_CONFIG = 400  # entries of one config


def take_settings(held: Mapping[str, Any], seen_configs: set[int]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (attributes, functions) of what is set on one module.

    Args:
        held: attribute -> value.
        seen_configs: ids of configurations that were taken already; grows.
    """
    attributes: dict[str, Any] = {}
    functions: dict[str, str] = {}
    for key, value in held.items():
        if key.startswith("_") or key in _NOT_SETTINGS:
            continue
        _take(key, value, attributes, functions)
        if key in _CONFIGS and id(value) not in seen_configs:
            seen_configs.add(id(value))
            for inner, each in _entries(value):
                _take(f"{key}.{inner}", each, attributes, functions)
    return attributes, functions


def _take(key: str, value: Any, attributes: dict[str, Any], functions: dict[str, str]) -> None:
    kept = plain(value)
    if isinstance(kept, dict):
        attributes.update({f"{key}.{inner}": each for inner, each in kept.items()})
    elif kept is not NOT_PLAIN:
        attributes[key] = kept
    elif name := function_name(value):
        functions[key] = name


def _entries(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what a config object, namespace or dict holds."""
    values = config if type(config) is dict else members(config)
    for key in list(values)[:MAX_CONFIG]:
        if type(key) is str and key not in _NOT_SETTINGS and (not key.startswith("_") or key in _PRIVATE):
            yield _PRIVATE.get(key, key), values[key]
