"""evidence.json of one failure, written where the causes look for it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.layout import EVIDENCE_FILE


def write_evidence(bundles: Path, evidence: Evidence) -> str:
    """Write it to `bundles/<id>/evidence.json`.

    Returns:
        Why it could not be written; empty when it could.
    """
    folder = bundles / evidence.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EVIDENCE_FILE).write_bytes(msgspec.json.encode(json_safe(evidence)))
    except OSError as error:
        return str(error)
    return ""


def json_safe(evidence: Evidence) -> Evidence:
    """JSON has no NaN: named numbers that are not finite become text."""

    def safe(facts: dict[str, Any]) -> dict[str, Any]:
        return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}

    return replace(evidence, facts=safe(evidence.facts), optimizer=safe(evidence.optimizer))
