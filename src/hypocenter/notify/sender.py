"""Where alerts go: one thread sends them in turn; whoever has one only puts it down. A way that fails is said once."""

from __future__ import annotations

import importlib
import os
import pkgutil
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from hypocenter.errors import ConfigError
from hypocenter.notify import channels
from hypocenter.notify.alert import Alert

NOTIFY_HELP = (
    "Tell of errors and bad ends: command:WORDS, https://…, slack:https://…, mailto:ADDRESS, or env:NAME of a variable "
    "that holds one. May be repeated."
)
TIMEOUT_S = 10.0  # of one way, for one alert
MOST_WAITING = 100
MOST_SENT = 50  # alerts of one sender: a fault that comes again each minute is told often enough
_FROM_ENVIRONMENT = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


class Channel(Protocol):
    """What each file of `channels` has: a way to send alerts."""

    prefixes: tuple[str, ...]
    about: str

    def check(self, target: str) -> str: ...
    def send(self, target: str, alert: Alert, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way that alerts go. `shown` holds nothing secret."""

    channel: Channel
    target: str
    shown: str


def way_of(text: str) -> Way:
    """Read a way: `command:…`, `https://…`, `slack:https://…`, `mailto:…`, `smtp://…`, or `env:NAME` that holds one.

    Raises:
        ConfigError: it is none of these.
    """
    shown, name = "", _FROM_ENVIRONMENT.fullmatch(text)
    if name is not None:
        shown, text = text, os.environ.get(name[1], "")
        if not text:
            raise ConfigError(
                f"the variable {name[1]} is not set", where="--notify", fix="export it, or give the address itself"
            )
    for channel in _channels():
        for prefix in channel.prefixes:
            if not text.startswith(prefix):
                continue
            target = text.removeprefix(prefix) if prefix.endswith(":") else text
            if why := channel.check(target):
                raise ConfigError("an alert cannot go there", where=f"--notify {shown or prefix}…", why=why)
            return Way(channel=channel, target=target, shown=shown or f"{prefix}…")
    known = ", ".join(prefix + "…" for channel in _channels() for prefix in channel.prefixes)
    raise ConfigError(
        "an alert cannot go there",
        where="--notify",
        why=f"it begins with none of {known}",
        fix="--notify mailto:me@example.org",
    )


def _channels() -> list[Channel]:
    names = sorted(module.name for module in pkgutil.iter_modules(channels.__path__))
    return [importlib.import_module(f"{channels.__name__}.{name}") for name in names]  # type: ignore[misc]


class Sender:
    """Sends alerts in a thread of its own.

    Args:
        ways: where each goes.
        say: takes one line for each way that fails, once.
        timeout_s: of one way, for one alert.
    """

    def __init__(self, ways: Sequence[Way], say: Callable[[str], None], *, timeout_s: float = TIMEOUT_S) -> None:
        self._ways, self._say, self._timeout_s = ways, say, timeout_s
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._failed: set[int] = set()
        self._n_sent = 0
        self._thread = threading.Thread(target=self._go, name="hypocenter-notify", daemon=True)
        self._thread.start()

    def send(self, alert: Alert) -> None:
        """Put an alert into the queue. Never waits; what is too much is dropped."""
        if self._n_sent < MOST_SENT:
            self._n_sent += 1
            with suppress(queue.Full):
                self._waiting.put_nowait(alert)

    def close(self, *, within_s: float = TIMEOUT_S) -> None:
        """Wait until all alerts are sent, for at most `within_s` seconds."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            try:
                self._waiting.put_nowait(None)
                break
            except queue.Full:
                time.sleep(0.05)
        self._thread.join(max(0.0, until - time.monotonic()))

    def _go(self) -> None:
        while (alert := self._waiting.get()) is not None:
            for number, way in enumerate(self._ways):
                try:
                    way.channel.send(way.target, alert, self._timeout_s)
                except Exception as error:
                    if number not in self._failed:
                        self._failed.add(number)
                        self._say(f"warning: an alert could not be sent to {way.shown} ({_reason(error)})")


def _reason(error: Exception) -> str:
    """Return what went wrong, without the address, which may be secret."""
    import subprocess

    if isinstance(error, subprocess.TimeoutExpired):
        return "it took too long"
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
