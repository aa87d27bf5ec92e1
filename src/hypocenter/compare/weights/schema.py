"""`hypocenter.weights/1`: a WeightsComparison as JSON. The schema is published beside this file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.compare.weights.comparison import WeightsComparison

SCHEMA_FILE = Path(__file__).with_name("weights.schema.json")


def to_json(comparison: WeightsComparison) -> str:
    """The comparison as indented JSON; a number that is not finite is "NaN", "Infinity" or "-Infinity"."""
    return json_answer.to_json(asdict(comparison))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every such answer validates against."""
    return json_answer.published(SCHEMA_FILE)
