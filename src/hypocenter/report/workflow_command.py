"""One workflow command of GitHub Actions: an annotation in the log, on a source line where there is one."""

from __future__ import annotations


def annotation(level: str, text: str, title: str, file: str = "", line: int | str = 0) -> str:
    """The command on one line.

    Args:
        level: error, warning or notice.
        file: that it is shown at; empty: at none.
    """
    place = f"file={_option(file)},line={line}," if file else ""
    return f"::{level} {place}title={_option(title)}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _option(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
