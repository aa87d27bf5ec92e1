"""Where a server (server.py) is asked for programs: a Unix socket, and who waits for which child."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Desk:
    """Where requests come in, and who waits for which child."""

    place = ""  # of this process

    def __init__(self, place: str) -> None:
        Desk.place = place
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(place)
        self._door.listen(64)
        self._waiting: dict[int, socket.socket] = {}
        self._ended, self._end = os.pipe()
        os.set_blocking(self._end, False)
        signal.set_wakeup_fd(self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written there

    def next(self) -> Request | None:
        """The next request; none when stdin has ended."""
        while True:
            ready, _, _ = select.select([0, self._ended, self._door, *self._waiting.values()], [], [])
            if 0 in ready:
                self._end_all(self._waiting)
                return None
            if self._ended in ready:
                os.read(self._ended, 1 << 12)
                self._tell()
            # Who asked never says more: it has hung up.
            self._end_all(pid for pid, client in self._waiting.items() if client in ready)
            if self._door in ready and (request := Request.of(self._door.accept()[0])):
                return request

    @staticmethod
    def _end_all(pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has only begun; of those that hang up we hear again
                os.killpg(pid, signal.SIGKILL)

    def _tell(self) -> None:
        for pid in list(self._waiting):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.answer(self._waiting.pop(pid), os.waitstatus_to_exitcode(status))

    def give(self, request: Request, pid: int) -> None:
        """A child does it; who asked is told which, and its end."""
        request.leave_streams()
        if "serve" in request.words:
            request.client.close()  # the new server says that it is ready
            return
        self._waiting[pid] = request.client
        self.answer(request.client, pid, is_last=False)

    @staticmethod
    def answer(client: socket.socket, word: object, is_last: bool = True) -> None:
        """Say it, to whoever still listens."""
        with contextlib.suppress(OSError):
            client.sendall(f"{word}\n".encode())
        if is_last:
            client.close()

    def close(self) -> None:
        """In a child: this is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._ended)
        os.close(self._end)
        for each in (self._door, *self._waiting.values()):
            each.close()


@dataclass(frozen=True)
class Request:
    """What is asked, by whom, and the streams that came with it."""

    words: dict[str, Any]
    client: socket.socket
    streams: list[int]

    @classmethod
    def of(cls, client: socket.socket) -> Request | None:
        """What a client says; none if it has gone."""
        text, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
        while text and not text.endswith(b"\n"):
            text += client.recv(1 << 16) or b"\n"
        return cls(json.loads(text), client, streams) if text.strip() else None

    def leave_streams(self) -> None:
        for number in self.streams:
            os.close(number)
