"""Machine-readable answers: plain values as JSON that any reader takes, and the schemas published beside the code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast


def to_json(value: Any, *, spell_out: bool = True) -> str:
    """Indented JSON in the order of the fields, with a final newline.

    Args:
        value: dicts, lists, tuples, texts, numbers: `dataclasses.asdict` gives them. Of anything else, its `str`.
        spell_out: a number that is not finite becomes the text "NaN", "Infinity" or "-Infinity" (bare NaN is not JSON),
            else null.
    """
    return json.dumps(plain(value, spell_out=spell_out), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any, *, spell_out: bool = True) -> Any:
    """The value with nothing in it that JSON or UTF-8 cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        if not spell_out:
            return None
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # lone surrogates are not UTF-8
    if isinstance(value, Mapping):
        return {str(key): plain(inner, spell_out=spell_out) for key, inner in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, spell_out=spell_out) for inner in cast(Sequence[Any], value)]
    return value if value is None or isinstance(value, (bool, int, float)) else plain(str(value))


def published(schema_file: Path) -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) that answers validate against."""
    schema: dict[str, Any] = json.loads(schema_file.read_text(encoding="utf-8"))
    return schema
