"""The manual page in a docstring: first line the message, then four headings, from which all help texts come."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

HEADINGS: tuple[str, ...] = ("What it means", "How it is decided", "What to do", "When it is wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """A parsed page. `sections` has a text for each heading that the docstring has, in order."""

    message: str
    sections: tuple[tuple[str, str], ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The headings that the page lacks or leaves empty."""
        given = {heading for heading, text in self.sections if text}
        return tuple(heading for heading in HEADINGS if heading not in given)

    def markdown(self, title: str) -> str:
        """Return the page as Markdown below a second-level heading."""
        parts = [f"## {title}", self.message]
        parts += [f"**{heading}.** {text}" for heading, text in self.sections]
        return "\n\n".join(parts) + "\n"


def page_of(function: Callable[..., object]) -> Manual:
    """Return the page of a catalogue's entry: the docstring of its file, or of the function where that has none."""
    module = sys.modules.get(function.__module__)
    return parse((module.__doc__ if module is not None else None) or function.__doc__)


def parse(docstring: str | None) -> Manual:
    """Read the page of a docstring; without one the page is empty and all headings are missing."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    sections: list[tuple[str, list[str]]] = []
    for line in lines[1:]:
        if line.strip() in HEADINGS:
            sections.append((line.strip(), []))
        elif sections:
            sections[-1][1].append(line)
    return Manual(
        message=lines[0].strip() if lines else "",
        sections=tuple((heading, inspect.cleandoc("\n".join(body)).strip()) for heading, body in sections),
    )
