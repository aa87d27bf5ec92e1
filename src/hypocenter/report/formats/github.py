"""Workflow commands that a GitHub Actions log turns into annotations on the source line."""

from __future__ import annotations

from hypocenter.nouns import Diagnosis
from hypocenter.report.outline import Entry, Recorded, outline

suffix = ".txt"

_COMMAND = {"error": "error", "warning": "warning", "note": "notice"}


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """One annotation per finding, notes included; the verdict as a notice."""
    report = outline(recorded, diagnosis, notes=True)
    lines = [_annotation(entry) for entry in report.entries]
    if report.status == "cannot-tell":
        lines.append(f"::warning title=hypocenter::{_message(report.verdict)}")
    return "\n".join([*lines, f"::notice title=hypocenter::{_message(report.summary)}"]) + "\n"


def _annotation(entry: Entry) -> str:
    options = [f"title={_option(f'{entry.code}: {entry.title}')}"]
    if entry.place:
        file, _, line = entry.place.rpartition(":")
        options = [f"file={_option(file)}", f"line={line}", *options]
    text = "\n".join([entry.where, *(f"{point.label}: {point.text}" for point in entry.points)])
    return f"::{_COMMAND[entry.severity]} {','.join(options)}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _option(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
