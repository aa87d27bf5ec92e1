"""A diagnosis in one line, for whoever has trained and asks whether all went well."""

from __future__ import annotations

from pathlib import Path

from hypocenter.nouns import Diagnosis, Finding


def in_a_line(diagnosis: Diagnosis) -> str:
    """Say `healthy in 40 steps`, or the first finding: `error[HC102]: ... (train.py:27, step 25)`."""
    found = [finding for finding in diagnosis.findings if finding.severity != "note"]
    steps = f"{diagnosis.n_steps:,} step{'' if diagnosis.n_steps == 1 else 's'}"
    if not found:
        is_healthy = diagnosis.status == "healthy"  # why it cannot be told, the run may have said already
        return f"healthy in {steps}" if is_healthy else f"cannot tell whether all is well in {steps}"
    more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"{found[0].severity}[{found[0].code}]: {found[0].title} ({_place(found[0])}){more}"


def _place(finding: Finding) -> str:
    line = f"{Path(finding.source.file).name}:{finding.source.line}, " if finding.source else ""
    return f"{line}step {finding.step}"
