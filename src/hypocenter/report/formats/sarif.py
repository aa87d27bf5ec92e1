"""SARIF 2.1.0, which code-scanning tools show beside the source line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypocenter import __version__
from hypocenter.nouns import Diagnosis
from hypocenter.report.outline import Entry, Recorded, outline

suffix = ".sarif"


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """One SARIF run, notes included. A run that cannot be judged is an unsuccessful invocation, not a clean one."""
    report = outline(recorded, diagnosis, notes=True)
    codes = sorted({entry.code for entry in report.entries})
    driver = {"name": "hypocenter", "version": __version__, "rules": [{"id": code} for code in codes]}
    judged = report.status != "cannot-tell"
    invocation: dict[str, Any] = {"executionSuccessful": judged}
    if not judged:
        invocation["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": report.verdict}}]
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [_result(entry, codes) for entry in report.entries],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def _result(entry: Entry, codes: list[str]) -> dict[str, Any]:
    text = "\n".join([f"{entry.title}: {entry.where}", *(f"{point.label}: {point.text}" for point in entry.points)])
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": entry.subject or "run"}]}
    if entry.place:
        file, _, line = entry.place.rpartition(":")
        path = Path(file)
        uri = path.as_uri() if path.is_absolute() else path.as_posix()
        region = {"startLine": max(int(line), 1)}
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": entry.code,
        "ruleIndex": codes.index(entry.code),
        "level": entry.severity,
        "message": {"text": text},
        "locations": [location],
    }
