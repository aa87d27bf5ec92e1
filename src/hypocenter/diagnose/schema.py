"""diagnosis.json: `hypocenter.diagnosis/1`, as DESIGN has it, with our additive fields. Published beside this file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter.nouns import Diagnosis

SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")


def to_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as indented JSON with sorted-as-declared keys and a final newline.

    A number that is not finite is written as a string, "NaN", "Infinity" or "-Infinity": bare NaN is not JSON.
    """
    return json.dumps(_plain(asdict(diagnosis)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every diagnosis.json validates against."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # lone surrogates are not UTF-8
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
