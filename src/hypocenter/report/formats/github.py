"""Workflow commands that a GitHub Actions log turns into annotations on the source line."""

from __future__ import annotations

from hypocenter.nouns import Diagnosis
from hypocenter.report.ci import annotation
from hypocenter.report.outline import Entry, Recorded, outline

suffix = ".txt"

_COMMAND = {"error": "error", "warning": "warning", "note": "notice"}


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """Return one annotation per finding, notes included, and the verdict as a notice."""
    report = outline(recorded, diagnosis, notes=True)
    lines = list(map(_annotation, report.entries))
    if report.status == "cannot-tell":
        lines.append(annotation("warning", report.verdict, "hypocenter"))
    return "\n".join([*lines, annotation("notice", report.summary, "hypocenter")]) + "\n"


def _annotation(entry: Entry) -> str:
    file, _, line = entry.place.rpartition(":")
    text = "\n".join([entry.where, *(f"{point.label}: {point.text}" for point in entry.points)])
    return annotation(_COMMAND[entry.severity], text, f"{entry.code}: {entry.title}", file, line)
