"""Machine-readable answers: a typed answer as JSON that any reader takes, and the JSON Schema made from its type.

An answer is a frozen dataclass or `msgspec.Struct`. Its field names are the keys, its docstring and the
`Meta(description=...)` of its fields what the schema says of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import msgspec

NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def to_json(value: Any) -> str:
    """Return indented JSON in the order of the fields, with a final newline.

    A number that is not finite becomes the text "NaN", "Infinity" or "-Infinity" (bare NaN is not JSON); null in an
    answer whose class says `SPELLS_OUT = False`.

    Args:
        value: an answer, or dicts, lists, tuples, texts, numbers. Of anything else, its `str`.
    """
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any, *, spell_out: bool | None = None) -> Any:
    """Return the value as plain JSON values, without anything that JSON or UTF-8 cannot hold."""
    if spell_out is None:
        spell_out = getattr(value, "SPELLS_OUT", True)
    if isinstance(value, float) and not math.isfinite(value):
        return ("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity") if spell_out else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # lone surrogates are not UTF-8
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {key: plain(getattr(value, name), spell_out=spell_out) for key, name in names}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), spell_out=spell_out) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner, spell_out=spell_out) for key, inner in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, spell_out=spell_out) for inner in cast(Sequence[Any], value)]
    return value if value is None or isinstance(value, (bool, int, float)) else plain(str(value))


def published(answer: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an answer as `to_json` writes it.

    All its fields are written, no others are, and a number may be one that is not finite. A field whose metadata says
    `optional` came later: what an older version wrote lacks it and is valid still.
    """
    made, spell_out = msgspec.json.schema(answer), getattr(answer, "SPELLS_OUT", True)
    parts = {name: _as_written(part, spell_out) for name, part in made["$defs"].items()}
    whole = parts.pop(made["$ref"].rpartition("/")[2])
    title = whole["properties"]["schema"]["enum"][0]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": title, **whole, "title": title}
    return {**head, "$defs": parts} if parts else head


def _as_written(schema: Any, spell_out: bool) -> Any:
    """Turn the schema of a type into that of what is written."""
    if isinstance(schema, list):
        return [_as_written(inner, spell_out) for inner in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {key: _of_key(key, inner, spell_out) for key, inner in schema.items() if key != "default"}
    if found.get("type") == "object" and "properties" in found:
        later = [name for name, inner in found["properties"].items() if inner.pop("optional", False)]
        found |= {
            "required": [name for name in found["properties"] if name not in later],
            "additionalProperties": False,
        }
    if found.get("type") != "number":
        return found
    if not spell_out:
        return {**found, "type": ["number", "null"]}
    words = {key: found.pop(key) for key in ("description", "optional") if key in found}
    return {**words, "anyOf": [found, {"enum": [*NOT_FINITE]}]}


def _of_key(key: str, inner: Any, spell_out: bool) -> Any:
    """Turn what stands under one key of a schema: names of fields are no keywords, an enumeration holds values."""
    if key == "properties":
        return {name: _as_written(field, spell_out) for name, field in inner.items()}
    if key == "description":
        return " ".join(inner.split())  # a docstring is wrapped
    return list(inner) if key in ("enum", "required") else _as_written(inner, spell_out)
