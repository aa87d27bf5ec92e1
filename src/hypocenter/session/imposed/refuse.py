"""What was asked to be imposed cannot be: the one case in which the program must not go on, for it would mislead."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

from hypocenter.errors import HypocenterError
from hypocenter.record.layout import REFUSED_FILE
from hypocenter.session.guard import StopTraining, show_traceback

EXIT_CODE = 2  # as for an option that cannot be followed


class ImposeError(HypocenterError):
    """Something that `run` was asked to impose does not fit the program."""

    slug = "cannot-impose"


def refuse(error: HypocenterError, directory: Path | None = None) -> NoReturn:
    """Say why, and end the process with exit code 2 from inside the program.

    Args:
        directory: of the run; a mark is left there, for a launcher gives its processes' exit code as its own 1.
    """
    rank = os.environ.get("RANK")
    who = "hypocenter" if rank is None else f"hypocenter (rank {rank})"
    sys.stderr.write(f"{who}: {error}\n")  # in one piece: other ranks write there too
    sys.stderr.flush()
    if directory is not None:
        with contextlib.suppress(OSError):
            (directory / REFUSED_FILE).write_text(str(error), encoding="utf-8")
    raise StopTraining(EXIT_CODE)


@contextlib.contextmanager
def or_refused(directory: Path) -> Generator[None, None, None]:
    """End the process if this block raises: the experiment would not be the one that was asked for."""
    try:
        yield
    except HypocenterError as error:
        refuse(error, directory)
    except Exception as error:  # ours, or a program that is made as nobody thought of
        show_traceback(error)
        words = f"{type(error).__name__}: {error}"
        refuse(ImposeError("what was asked for cannot be imposed on this program", why=words[:500]), directory)


def refuse_now(directory: Path, reason: str) -> NoReturn:
    """End the process: Hypocenter switches itself off, and can no longer impose what was asked for."""
    refuse(ImposeError("what was to be imposed can no longer be", where="hypocenter", why=reason), directory)
