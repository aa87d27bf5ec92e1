"""Ship a rank in a process of its own: an ending program cannot start threads, which stores' clients need.

The process shares no lock, no interpreter and no memory with training, and goes on when the program dies. While
training goes on, the process is started by a shell that waits for orders and only runs while no other program wants the
processor: what training starts itself would push it off its processor for a turn (4 ms on Linux).
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hypocenter.record.address import without_secrets

if TYPE_CHECKING:
    from hypocenter.record.shipping import Freight

_SHELL = "/bin/sh"
# Each line that comes is a command; the answer is its exit code and the last line that it wrote.
_LOOP = 'while IFS= read -r line; do why=$(eval "$line" 2>&1 </dev/null); printf "%s %s\\n" "$?" "${why##*"$1"}"; done'
_GIVE_WAY = """import os, sys
try: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
except (AttributeError, OSError): os.nice(19)
os.execv(sys.argv[1], sys.argv[1:])"""
_ANSWER_AT_MOST = 1 << 16  # bytes


class Starter:
    """Starts the processes of one rank. The shell is started when it is first needed; `close` ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of `_shell`: `close` comes from another thread
        self._shell: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._environment: dict[str, str] = {}

    def ship(self, freight: Freight, is_over: bool, timeout_s: float) -> str:
        """Ship all of a rank, or what nobody writes any more, in so many seconds; return why not, or nothing."""
        words = command_of(freight, is_over)
        if is_over or not Path(_SHELL).exists() or any("\n" in word for word in words):
            return at_once(words, timeout_s)
        try:
            return self._order(shlex.join(words), timeout_s)
        except OSError:  # the shell is gone
            self._end()
            return "" if self._is_closed else at_once(words, timeout_s)

    def close(self) -> None:
        """End the shell, and what it still runs."""
        self._is_closed = True
        self._end()

    def _order(self, line: str, timeout_s: float) -> str:
        shell = self._started()
        assert shell.stdin is not None
        assert shell.stdout is not None
        os.write(shell.stdin.fileno(), f"{line}\n".encode())
        answer, until = b"", time.monotonic() + timeout_s
        while not answer.endswith(b"\n") and len(answer) < _ANSWER_AT_MOST:
            ready, _, _ = select.select([shell.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._end()
                return _too_long(timeout_s)
            piece = os.read(shell.stdout.fileno(), _ANSWER_AT_MOST)
            if not piece:
                raise OSError("the shell has ended")
            answer += piece
        code, _, text = answer.decode("utf-8", "replace").partition(" ")
        return _why(int(code), text)

    def _started(self) -> subprocess.Popen[bytes]:
        environment = _environment()
        if self._shell is not None and (environment != self._environment or self._shell.poll() is not None):
            self._end()
        if self._shell is None:
            self._environment = environment
            self._shell = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _GIVE_WAY, _SHELL, "-c", _LOOP, _SHELL, "\n"], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                bufsize=0,
            )  # fmt: skip
        return self._shell

    def _end(self) -> None:
        with self._lock:
            shell, self._shell = self._shell, None
        if shell is not None:
            with suppress(OSError):
                os.killpg(shell.pid, signal.SIGKILL)
            with shell:  # closes the pipes, and waits
                pass


def command_of(freight: Freight, is_over: bool) -> list[str]:
    """Return the command that ships."""
    words = [sys.executable, "-m", "hypocenter.record.ship_apart", str(freight.run), str(freight.folder)]
    return [*words, freight.address, *(["--over"] if is_over else []), *freight.also]


def _environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), found.get("PYTHONPATH", "")]))
    return found


def at_once(words: list[str], timeout_s: float) -> str:
    """Ship with the priority of this program; return why it failed, or nothing."""
    try:
        ended = subprocess.run(
            words, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=timeout_s, check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _too_long(timeout_s)
    return _why(ended.returncode, ended.stderr.decode("utf-8", "replace"))


def _too_long(timeout_s: float) -> str:
    return f"it took more than {timeout_s:.0f} s"


def _why(code: int, said: str) -> str:
    if code == 0:
        return ""
    lines = said.strip().splitlines()
    return without_secrets(lines[-1])[:200] if lines else f"exit code {code}"
