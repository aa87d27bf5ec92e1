"""`hypocenter.weights/1`: a WeightsComparison as JSON. The schema is published beside this file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter.compare.weights.comparison import WeightsComparison

SCHEMA_FILE = Path(__file__).with_name("weights.schema.json")


def to_json(comparison: WeightsComparison) -> str:
    """The comparison as indented JSON; a number that is not finite is "NaN", "Infinity" or "-Infinity"."""
    return json.dumps(_plain(asdict(comparison)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every such answer validates against."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
