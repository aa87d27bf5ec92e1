"""Where this process stands among the ranks: told to the recording as rank.json, again when more becomes known."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from hypocenter.nouns import Attempt, Place
from hypocenter.record.place_file import write_place
from hypocenter.session.rank import rank_and_world_size


class PlaceKeeper:
    """Knows the place of this rank and keeps rank.json true.

    Args:
        directory: the run directory.
        warn: takes one line of text.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._directory, self._warn = directory, warn
        self._written: Place | None = None
        now_ns = time.time_ns()
        self._attempt = Attempt(
            number=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=datetime.fromtimestamp(now_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds"),
            started_ns=now_ns,
        )

    def current(self) -> Place:
        """What is known now: cheap enough for each step."""
        rank, world_size = rank_and_world_size()
        return Place(rank=rank, world_size=world_size, host=self._attempt.host)

    def keep(self) -> Place:
        """The current place, written to rank.json when it is not what was written last."""
        place = self.current()
        if place != self._written:
            self._written = place
            problem = write_place(self._directory, place, self._attempt)
            if problem:
                self._warn(f"rank.json could not be written: {problem}")
        return place
