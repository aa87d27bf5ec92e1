"""Files that a command writes because it was told to: never over what is there, and one clear error if it cannot."""

from __future__ import annotations

from pathlib import Path

from hypocenter.errors import ConfigError, ExistsError


def refuse_existing(target: Path | None, what: str, *, flag: str, force: bool | None = None) -> None:
    """Raise ExistsError, before any work is done, if the output exists already.

    Args:
        target: None and `-` (stdout) are always free.
        what: what it is to hold: "report".
        flag: by which another name is given: "--report".
        force: whether to replace it; None where the command has no such option.

    Raises:
        ExistsError: there is.
    """
    if target is None or str(target) == "-" or force or not target.exists():
        return
    raise ExistsError(
        f"the {what} exists already", where=str(target), why="files are never overwritten silently",
        fix=f"choose another with {flag}, or {'remove it' if force is None else 'add --force to replace it'}",
    )  # fmt: skip


def write_file(target: Path, text: str, what: str, *, flag: str) -> None:
    """Write a text to the file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the {what} cannot be written", where=str(target), why=error.strerror or str(error),
            fix=f"choose another with {flag}",
        ) from error  # fmt: skip
