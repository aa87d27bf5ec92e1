"""A child of the doctor that examines: started, listened to, and ended with everything that it holds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOT_FOR_CHILDREN = ("HYPOCENTER_", "NCCL_DEBUG_FILE")  # nothing is recorded, and no log of training written over
_LOG_TAIL_BYTES, _LOG_LINES = 16384, 40


class Child:
    """A process `python -m hypocenter.examine` that does a request. Its messages are lines of JSON."""

    def __init__(self, request: Mapping[str, Any], environ: Mapping[str, str], keep: tuple[int, ...] = ()) -> None:
        """Start the process.

        Args:
            keep: file descriptors that it needs.
        """
        handle, name = tempfile.mkstemp(prefix="hypocenter-doctor-", suffix=".log")
        Path(name).unlink()  # nothing is left behind, however we end: both sides hold it open
        self._log = handle
        reading, writing = os.pipe()
        kept = {name: value for name, value in environ.items() if not name.startswith(_NOT_FOR_CHILDREN)}
        env = {
            # a stuck collective is ours to report: by default the watchdog of NCCL ends the process
            **kept, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "PYTHONUNBUFFERED": "1",
            "NCCL_DEBUG": environ.get("NCCL_DEBUG") or "INFO",
        }  # fmt: skip
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hypocenter.examine"], env=env, stdin=subprocess.PIPE, stdout=handle,
                stderr=handle, pass_fds=(writing, *keep), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.fd, self._rest = reading, b""
        self.rank = int(request.get("rank", 0))
        self.last_at = "starting python"
        self.is_open = True
        self.send({**request, "speak_fd": writing})

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send the child a message as one line; nothing happens when it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that have come. Afterwards `is_open` says whether more can come."""
        try:
            while data := os.read(self.fd, 1 << 16):
                self._rest += data
            self.is_open = False
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        messages = [json.loads(line) for line in lines if line.strip()]
        for message in messages:
            if message["kind"] == "at":
                self.last_at = message["what"]
        return messages

    def how_it_ended(self, wait_s: float) -> dict[str, Any]:
        """Return what is known of a child that is gone: {"signal" or "code", "at", "tail"}."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        code = self._process.poll()
        how = {"signal": -code} if code is not None and code < 0 else {"code": code}
        return {**how, "at": self.last_at, "tail": self.tail()}

    def tail(self) -> list[str]:
        """Return the last lines that the child printed, without NCCL's chatter."""
        try:
            start = max(0, os.fstat(self._log).st_size - _LOG_TAIL_BYTES)
            data = os.pread(self._log, _LOG_TAIL_BYTES, start).decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in data.splitlines() if line.strip() and "NCCL INFO" not in line][-_LOG_LINES:]

    def let_end(self, wait_s: float) -> None:
        """Tell the child that nothing more comes, give it a moment, then end it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self.kill()

    def kill(self) -> None:
        """End the child now, with whatever it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # SIGKILL is not refused, but a driver may hold a process for a while
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self._log)
            self.fd = self._log = -1
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()
