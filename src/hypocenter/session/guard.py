"""Never hurt the run: a failing part of Hypocenter switches itself off, says so once, and training goes on."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypocenter.capturing import is_capturing
from hypocenter.session.device_errors import DeviceError, device_error
from hypocenter.unwarned import still_shown

F = TypeVar("F", bound=Callable[..., Any])


class StopTraining(SystemExit):
    """Raised into training when the user asked to stop: after a batch, or on a finding."""


def say(text: str) -> None:
    """Print a line on stderr; nothing where the program has none: what goes to stdout is its own."""
    if sys.stderr is not None:  # type: ignore[reportUnnecessaryComparison]
        print(f"hypocenter: {text}", file=sys.stderr, flush=True)


class Warnings:
    """Prints each distinct warning once, in a line on stderr, and keeps it for run.json."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        if text not in self.lines:
            self.lines.append(text)
            say(text)


def show_traceback(error: BaseException | None) -> None:
    """Print the traceback of an error of Hypocenter's own, if HYPOCENTER_TRACEBACK is set."""
    if os.environ.get("HYPOCENTER_TRACEBACK") and error is not None:
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)


class Listening:
    """What the sessions of every framework share: they listen, and let go of the program once they fail.

    Attributes:
        is_off: nothing is listened to any more.
    """

    def __init__(self) -> None:
        self.is_off = False
        self.warn = Warnings()
        self._pid = os.getpid()
        self._undo: list[Callable[[], None]] = []
        self._stays: list[Callable[[], None]] = []  # of them, those that stay when a device is broken: the last words

    def while_capturing(self, event: str, given: tuple[Any, ...]) -> None:
        """Do nothing about an event while the program's device captures a graph: any work would go into the graph.

        Args:
            event: the listener method that is not called.
            given: its arguments.
        """

    def let_go(self, reason: str) -> None:
        """Give up what cannot be gone on with: Hypocenter has failed, for this reason."""

    def switch_off(self, reason: str, error: BaseException | None = None) -> None:
        """Let go of the program after an internal error, and say so once; after a device error some last words stay."""
        self.is_off = True
        broken = device_error(error)
        self._detach(self._stays if broken is not None else ())
        if broken is None:
            self.warn(f"switched off after an internal error, training goes on ({reason})")
            show_traceback(error)
        else:
            with contextlib.suppress(Exception):  # what is asked of the device now raises again
                self.broken(broken)
        self.let_go(reason)

    def broken(self, what: DeviceError) -> None:
        """Warn that a device gives no more results. The program will be told by its next request to the device."""
        self.warn(f"{what.title} was seen, nothing is recorded from here on: {what.text}")

    def forked(self) -> None:
        """Listen to nothing in a forked child: it is a worker that prepares data, and trains nothing."""
        self.is_off = True
        self._detach()

    def _detach(self, stays: Sequence[Callable[[], None]] = ()) -> None:
        for undo in reversed(self._undo):  # patches on top of patches come off first
            if undo not in stays:
                with contextlib.suppress(Exception):
                    undo()
        self._undo = list(stays)


def guarded(method: F) -> F:
    """Run a listener method; on an unexpected error call `self.switch_off(reason)` instead of raising."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_off:
            return None
        try:
            if is_capturing():
                return self.while_capturing(method.__name__, args)
            return still_shown(method, (self, *args), kwargs)
        except StopTraining:
            raise
        except Exception as error:
            self.switch_off(f"{method.__name__}: {type(error).__name__}: {error}", error)
            return None

    return wrapper  # type: ignore[return-value]
