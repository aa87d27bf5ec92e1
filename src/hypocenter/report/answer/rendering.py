"""In: an answer and the name of a format. Out: its text, from its fields and what is said of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hypocenter.json_answer import to_json
from hypocenter.report.answer.outline import outline

FORMATS = ("terminal", "json", "html", "markdown", "github")
"""What every reading command can show its answer as; its screen is its own."""


def render(command: str, answer: Any, name: str) -> str:
    """The text that `hypocenter COMMAND --format NAME` prints, with a final newline.

    Args:
        command: the words after `hypocenter`.
        answer: a typed answer, or a mapping with its keys.
        name: one of FORMATS, but `terminal`.
    """
    if name == "json":
        return to_json(answer)
    rendering: str = import_module(f"hypocenter.report.answer.{name}").render(outline(command, answer))
    return rendering
