"""SARIF 2.1.0, which code-scanning tools show beside the source line."""

from __future__ import annotations

from hypocenter.nouns import Diagnosis
from hypocenter.report.ci import sarif, sarif_result
from hypocenter.report.outline import Recorded, outline

suffix = ".sarif"


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """Return one SARIF run, notes included; a run that cannot be judged is an unsuccessful invocation."""
    report = outline(recorded, diagnosis, notes=True)
    codes = sorted({entry.code for entry in report.entries})
    results: list[dict[str, object]] = []
    for entry in report.entries:
        text = "\n".join([f"{entry.title}: {entry.where}", *(f"{point.label}: {point.text}" for point in entry.points)])
        file, _, line = entry.place.rpartition(":")
        results.append(
            sarif_result(
                entry.code, codes.index(entry.code), entry.severity, text, entry.subject or "run", file, line or 1
            )
        )
    return sarif(codes, results, report.verdict if report.status == "cannot-tell" else None)
