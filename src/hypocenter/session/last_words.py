"""The last words of a process: an exception that nobody caught, and the Python stack when SIGTERM comes.

Hooks are chained, never replaced: what the program, a framework or Python itself does at an exception is done. The
handler of SIGTERM is faulthandler's, in C: it writes even while the rank is stuck inside a collective, then the signal
does what it would have done. Where the program handles SIGTERM itself from Python later on, ours is no longer there.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing.process
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

_LIBRARIES = (
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    str(Path(__file__).resolve().parents[1]),
)
_AT_MOST_CHARACTERS = 600


class Told(Protocol):
    """Takes an exception that nobody caught."""

    def __call__(self, error: BaseException, *, in_thread: bool) -> None: ...


class LastWords:
    """Tells of uncaught exceptions while attached."""

    def __init__(self, tell: Told) -> None:
        self._tell: Told | None = tell
        self._stack_fd = -1
        self._handler: Any = None  # of SIGTERM, as Python knows it, when ours was set
        self._reports_crashes = False
        self._pid = os.getpid()

    def attach(self) -> Callable[[], None]:
        """Chain ourselves in front of the hooks that are set; return the undo."""
        before, thread_before = sys.excepthook, threading.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._say(error, in_thread=False)
            before(kind, error, trace)

        def thread_hook(args: Any) -> None:
            if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
                self._say(args.exc_value, in_thread=True)
            thread_before(args)

        sys.excepthook, threading.excepthook = hook, thread_hook
        no_longer = [_around(owner, name, self._say) for owner, name in _catchers()]

        def undo() -> None:
            self._tell = None  # somebody may have chained in front of us: then we stay, and do nothing
            if sys.excepthook is hook:
                sys.excepthook = before
            if threading.excepthook is thread_hook:
                threading.excepthook = thread_before
            for each in no_longer:
                each()
            self._take_out_handler()

        return undo

    def keep_stack_in(self, opened: Callable[[], int]) -> None:
        """Let SIGTERM, or a crash outside Python, leave the stack at the file descriptor that `opened` gives.

        A program that has asked for Python's own report of crashes keeps it.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(faulthandler, "register"):
            return
        self._stack_fd = opened()
        self._handler = signal.getsignal(signal.SIGTERM)
        faulthandler.register(signal.SIGTERM, file=self._stack_fd, all_threads=False, chain=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=os.dup(self._stack_fd), all_threads=False)  # never closed: a crash writes there
            self._reports_crashes = True

    def _take_out_handler(self) -> None:
        """Take out our handler of SIGTERM, unless the program has set its own since: that one has to stay."""
        if self._reports_crashes and os.getpid() != self._pid:
            faulthandler.disable()  # a forked child that crashes is not this rank
        if self._stack_fd >= 0 and signal.getsignal(signal.SIGTERM) is self._handler:
            faulthandler.unregister(signal.SIGTERM)
            with contextlib.suppress(OSError):
                os.close(self._stack_fd)
            self._stack_fd = -1

    def _say(self, error: BaseException, *, in_thread: bool) -> None:
        if self._tell is not None:
            with contextlib.suppress(Exception):  # the exception is the program's; nothing of ours may add to it
                self._tell(error, in_thread=in_thread)


def _catchers() -> list[tuple[Any, str]]:
    """Return the functions that run what a multiprocessing child was started for, and catch what that raises.

    The second is torch's, of `torch.multiprocessing.spawn`: its first argument is the function to run.
    """
    found: list[tuple[Any, str]] = [(multiprocessing.process.BaseProcess, "run")]
    spawning = sys.modules.get("torch.multiprocessing.spawn")
    return [*found, (spawning, "_wrap")] if hasattr(spawning, "_wrap") else found


def _around(owner: Any, name: str, say: Told) -> Callable[[], None]:
    """Tell of an exception on its way out of a function, whoever catches it next. Returns the undo."""
    original = getattr(owner, name)

    def told(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                say(error, in_thread=False)
                raise

        return run

    @functools.wraps(original)
    def wrap(function: Callable[..., Any], *args: Any) -> Any:
        return original(told(function), *args)

    around = wrap if name == "_wrap" else told(original)
    setattr(owner, name, around)

    def undo() -> None:
        if getattr(owner, name) is around:
            setattr(owner, name, original)

    return undo


def last_error() -> BaseException | None:
    """Return the exception that ends the program, or the part of it that is watched; None if it ends well."""
    handled = sys.exc_info()[1]  # as in the exit of a `with`
    if isinstance(handled, (Exception, KeyboardInterrupt)):
        return handled
    told = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return told if isinstance(told, BaseException) and not hasattr(sys, "ps1") else None


def innermost(trace: TracebackType) -> FrameType:
    """Return the frame that raised the exception."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame


def user_place(trace: TracebackType | None) -> tuple[FrameType, int] | None:
    """Return the innermost frame of the program's own code and its line; None when all frames are of libraries."""
    found = None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
            found = trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
    return found


def one_line(error: BaseException) -> str:
    """Return an exception's text on one line, with the line of the program's own code that it came from."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    place = _place(error.__traceback__)
    text = text if len(text) <= _AT_MOST_CHARACTERS - len(place) else f"{text[: _AT_MOST_CHARACTERS - len(place)]}…"
    return f"{text}{place}"


def _place(trace: TracebackType | None) -> str:
    found = user_place(trace)
    return "" if found is None else f" ({Path(found[0].f_code.co_filename).name}:{found[1]})"
