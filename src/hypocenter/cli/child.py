"""Run the user's program in the foreground as if we were not there: its terminal, its signals, its way of ending."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hypocenter.errors import HypocenterError

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED = frozenset(getattr(signal, name) for name in _FORWARDED if hasattr(signal, name))


class StartError(HypocenterError):
    """The program was found but the operating system would not start it."""

    slug = "cannot-start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended. `code` is what a shell would show: 128 + N for death by signal N."""

    code: int
    signal: int | None = None


def require_posix() -> None:
    """Raise StartError where a program cannot be run as if we were not there: there are no signals to hand on."""
    if not hasattr(signal, "pthread_sigmask"):
        raise StartError(
            "programs are not recorded on this system",
            where=sys.platform,
            why="it has no signals as Linux and macOS have them; recordings made there are read here",
            fix="record on Linux or macOS",
        )


@contextmanager
def signals_held() -> Generator[set[signal.Signals], None, None]:
    """Hold signals back that are to be forwarded, so that none is lost or kills us around the program's run.

    Gives the mask that the program is to have. Afterwards Ctrl-C and the rest mean to us what they meant before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_child(argv: Sequence[str], env: Mapping[str, str], mask: set[signal.Signals]) -> Ended:
    """Start the program with our stdin, stdout and stderr, forward signals, and wait. Call inside `signals_held`.

    Raises:
        StartError: the operating system refuses to start it.
    """
    try:
        # Python itself ignores these two; a program should find them as a shell would give them.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        pid = os.posix_spawn(argv[0], list(argv), dict(env), setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        raise StartError(
            "the program cannot be started",
            where=argv[0],
            why=error.strerror or str(error),
            fix="check its permissions and its first line (#!/usr/bin/env ...)",
        ) from error
    status = _wait(pid)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code=code) if code >= 0 else Ended(code=128 - code, signal=-code)


def die_by(number: int) -> None:
    """End this process by the same signal, so that a shell or a scheduler sees what it would have seen.

    Returns where that is impossible: as process 1 of a container, signals without a handler are not delivered.
    """
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # the program's own core dump is the one of interest
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _wait(pid: int) -> int:
    while True:
        number, is_from_kernel = _next_signal()
        if number == signal.SIGCHLD:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
        elif not (is_from_kernel and os.getpgid(pid) == os.getpgrp()):
            os.kill(pid, number)  # Ctrl-C and hang-up come from the kernel, to the whole group: the program has them


def _next_signal() -> tuple[int, bool]:
    watched = FORWARDED | {signal.SIGCHLD}
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(watched)
        return info.si_signo, info.si_code > 0  # SI_KERNEL = 0x80; kill() gives SI_USER = 0
    number = signal.sigwait(watched)  # macOS: the sender is not known, so guess by what a terminal sends
    return number, number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
