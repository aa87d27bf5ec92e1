"""A workflow command that a GitHub Actions log turns into an annotation."""

from __future__ import annotations

from hypocenter.compare.comparison import Comparison

suffix = ".txt"
_COMMAND = {"same": "notice", "diverged": "error", "cannot-tell": "warning"}


def render(found: Comparison) -> str:
    """One annotation: the sentence, and what it rests on."""
    options = ["title=hypocenter diff"]
    source = found.first.source if found.first is not None else None
    if source is not None:
        options = [f"file={_option(source.file)}", f"line={source.line}", *options]
    cause = [f"cause: {found.cause} ({found.confidence})"] if found.cause else []
    text = "\n".join([found.sentence, *(f"why: {reason}" for reason in found.why), *cause])
    return f"::{_COMMAND[found.status]} {','.join(options)}::{_message(text)}\n"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _option(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
