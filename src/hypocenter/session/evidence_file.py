"""evidence.json of one failure, written where the causes look for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.layout import EVIDENCE_FILE


def write_evidence(bundles: Path, evidence: Evidence, warn: Callable[[str], None] | None = None) -> str:
    """Write evidence to `bundles/<id>/evidence.json`.

    Args:
        bundles: folder of the rank.
        evidence: of one failure.
        warn: takes one line of text if it cannot be written.

    Returns:
        Its id; empty when it could not be written.
    """
    folder = bundles / evidence.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EVIDENCE_FILE).write_bytes(msgspec.json.encode(json_safe(evidence)))
    except OSError as error:
        if warn is not None:
            warn(f"the evidence cannot be written: {error}")
        return ""
    return evidence.id


def json_safe(evidence: Evidence) -> Evidence:
    """Replace named numbers that are not finite by text, as JSON has no NaN."""

    def safe(facts: dict[str, Any]) -> dict[str, Any]:
        return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}

    return replace(evidence, facts=safe(evidence.facts), optimizer=safe(evidence.optimizer))
