"""diagnosis.json: `hypocenter.diagnosis/1`, as DESIGN has it, with our additive fields. Published beside this file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.nouns import Diagnosis

SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")


def to_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as indented JSON with sorted-as-declared keys and a final newline.

    A number that is not finite is written as a string, "NaN", "Infinity" or "-Infinity": bare NaN is not JSON.
    """
    return json_answer.to_json(asdict(diagnosis))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every diagnosis.json validates against."""
    return json_answer.published(SCHEMA_FILE)
