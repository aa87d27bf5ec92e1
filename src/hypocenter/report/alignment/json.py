"""`hypocenter.alignment/1`: the answer as JSON. Its schema is published beside this file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.align.alignment import Alignment

SCHEMA = "hypocenter.alignment/1"
SCHEMA_FILE = Path(__file__).with_name("alignment.schema.json")


def render(found: Alignment) -> str:
    """Indented JSON with a final newline."""
    return json_answer.to_json(envelope(found))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)


def envelope(found: Alignment) -> dict[str, Any]:
    """The answer as plain values."""
    return {"schema": SCHEMA, **asdict(found)}
