"""An answer as workflow commands that a GitHub Actions log turns into annotations."""

from __future__ import annotations

from hypocenter.report.answer.outline import Outline
from hypocenter.report.workflow_command import annotation

_MOST = 10  # annotations of a kind that GitHub shows of one step


def render(found: Outline) -> str:
    """The answer first, then what in it is not well."""
    lines = [annotation(one.level, one.text, one.title, one.file, one.line) for one in found.notices[: _MOST + 1]]
    if len(found.notices) > len(lines):
        left = f"{len(found.notices) - len(lines):,} more are in --json"
        lines.append(annotation("notice", left, f"hypocenter {found.command}"))
    return "\n".join(lines) + "\n"
