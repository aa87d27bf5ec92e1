"""What the doctor asks of a rank, and the line back to it."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of the doctor: one line of JSON on stdin. Times are seconds from the start of the child."""

    speak_fd: int  # where the answers go
    timeout_s: float
    rank: int = 0
    n_ranks: int = 1
    store_host: str = ""
    store_port: int = 0
    hosts_store: bool = False  # this rank makes the store; else somebody else (torchrun's agent, rank 0) does
    store_fd: int = -1  # a listening socket for it, or -1
    local_rank: int = 0
    key: str = ""  # the same on all ranks of this attempt, of no other
    carried: dict[str, Any] = field(default_factory=dict)  # plain data that travels with this rank's report
    died: dict[str, Any] = field(default_factory=dict)  # how the child before this one ended: it says so, no more
    only: str = ""  # "arithmetic": no other rank is asked for; "devices": only count them

    @staticmethod
    def of(line: str) -> Request:
        """Read the request from a line."""
        return Request(**json.loads(line))


class Speaker:
    """Writes lines to the doctor, each as a whole; when nobody listens any more, they are dropped."""

    def __init__(self, fd: int) -> None:
        self._fd, self._lock = fd, threading.Lock()

    def say(self, kind: str, **data: Any) -> None:
        """Send one message."""
        line = (json.dumps({"kind": kind, **data}) + "\n").encode()
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                return
