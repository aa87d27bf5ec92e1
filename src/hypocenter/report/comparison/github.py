"""A workflow command that a GitHub Actions log turns into an annotation."""

from __future__ import annotations

from hypocenter.compare.comparison import Comparison
from hypocenter.report.ci import annotation

suffix = ".txt"
_COMMAND = {"same": "notice", "diverged": "error", "cannot-tell": "warning"}


def render(found: Comparison) -> str:
    """Return one annotation: the sentence, and what it rests on."""
    source = found.first.source if found.first is not None else None
    file, line = (source.file, source.line) if source is not None else ("", 0)
    cause = [f"cause: {found.cause} ({found.confidence})"] if found.cause else []
    text = "\n".join([found.sentence, *(f"why: {reason}" for reason in found.why), *cause])
    return annotation(_COMMAND[found.status], text, "hypocenter diff", file, line) + "\n"
