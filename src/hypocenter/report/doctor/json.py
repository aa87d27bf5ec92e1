"""`hypocenter.doctor/1`: the answer as JSON. Its schema is published beside this file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.doctor.answer import Answer, Check

suffix = ".json"
SCHEMA = "hypocenter.doctor/1"
SCHEMA_FILE = Path(__file__).with_name("doctor.schema.json")


def render(found: Answer) -> str:
    """Indented JSON with a final newline; nothing is cut."""
    return json_answer.to_json(envelope(found))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)


def envelope(found: Answer) -> dict[str, Any]:
    """The answer as plain values."""
    return {
        "schema": SCHEMA,
        "status": found.status,
        "sentence": found.sentence,
        "ranks": found.n_ranks,
        "missing": list(found.missing),
        "checks": [_check(check) for check in found.checks],
        "notes": list(found.notes),
    }


def _check(check: Check) -> dict[str, Any]:
    return {**asdict(check), "fix": list(check.fix), "host": check.host or None}
