"""Never hurt the run: a failing part of Hypocenter switches itself off, says so once, and training goes on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class StopTraining(SystemExit):
    """Raised into training when the user asked to stop: after a batch, or on a finding."""


class Warnings:
    """One line per distinct warning, on stderr, kept for run.json."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        if text not in self.lines:
            self.lines.append(text)
            print(f"hypocenter: {text}", file=sys.stderr)


def guarded(method: F) -> F:
    """Run a listener method; on an unexpected error call `self.switch_off(reason)` instead of raising."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_off:
            return None
        try:
            return method(self, *args, **kwargs)
        except StopTraining:
            raise
        except Exception as error:
            self.switch_off(f"{method.__name__}: {type(error).__name__}: {error}", error)
            return None

    return wrapper  # type: ignore[return-value]
