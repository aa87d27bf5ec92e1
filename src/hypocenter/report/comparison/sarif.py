"""SARIF 2.1.0, which code-scanning tools show beside the source line of the module that is to blame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypocenter import __version__
from hypocenter.compare.comparison import Comparison, Divergence
from hypocenter.compare.words import place

suffix = ".sarif"
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULE = "diverged"


def render(found: Comparison) -> str:
    """One result if the runs part. What cannot be told is an unsuccessful invocation, not a clean one."""
    judged = found.status != "cannot-tell"
    invocation: dict[str, Any] = {"executionSuccessful": judged}
    if not judged:
        invocation["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": found.sentence}}]
    results = [_result(found, found.first)] if found.status == "diverged" and found.first is not None else []
    driver = {"name": "hypocenter", "version": __version__, "rules": [{"id": _RULE}]}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _result(found: Comparison, first: Divergence) -> dict[str, Any]:
    lines = [found.sentence, *(f"why: {reason}" for reason in found.why)]
    lines += [f"cause: {found.cause} ({found.confidence})"] if found.cause is not None else []
    lines += [f"fix: {found.fit.fix}"] if found.fit is not None and found.fit.fix else []
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": place(first.site)}]}
    if first.source is not None:
        path = Path(first.source.file)
        uri = path.as_uri() if path.is_absolute() else path.as_posix()
        region = {"startLine": max(first.source.line, 1)}
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": _RULE, "ruleIndex": 0, "level": "error", "message": {"text": "\n".join(lines)},
        "locations": [location],
    }  # fmt: skip
