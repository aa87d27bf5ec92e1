"""`hypocenter.checklist/1`: the answer as JSON. Its schema is published beside this file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.checklist.checklist import Checklist, Row
from hypocenter.checklist.configuration import Setting

SCHEMA = "hypocenter.checklist/1"
SCHEMA_FILE = Path(__file__).with_name("checklist.schema.json")


def render(found: Checklist) -> str:
    """Indented JSON with a final newline; nothing is cut."""
    return json_answer.to_json(envelope(found))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)


def envelope(found: Checklist) -> dict[str, Any]:
    """The answer as plain values."""
    return {
        "schema": SCHEMA,
        "status": found.status,
        "sentence": found.sentence,
        "baseline": found.baseline,
        "candidate": found.candidate,
        "kinds": {"baseline": list(found.kinds_baseline), "candidate": list(found.kinds_candidate)},
        "rows": [_row(row) for row in found.rows],
        "unknown": {
            "baseline": [_setting(setting) for setting in found.unknown_baseline],
            "candidate": [_setting(setting) for setting in found.unknown_candidate],
        },
        "notes": list(found.notes),
        "samples": list(found.samples),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "item": row.item,
        "title": row.title,
        "group": row.group,
        "unit": row.unit,
        "baseline": row.baseline,
        "candidate": row.candidate,
        "verdict": row.verdict,
        "severity": row.severity,
        "why": row.why,
        "fix": row.fix,
        "assumed": row.assumed,
        "baseline_setting": _setting(row.baseline_setting),
        "candidate_setting": _setting(row.candidate_setting),
        "remarks": [asdict(remark) for remark in row.remarks],
    }


def _setting(setting: Setting | None) -> dict[str, Any] | None:
    if setting is None:
        return None
    return {
        "value": setting.value,
        "spelled": setting.spelled,
        "where": setting.where,
        "assumed": setting.assumed,
        "derived": setting.derived,
        "unresolved": setting.unresolved,
    }
