"""Where this process stands among the ranks, as rank.json: what the launcher and the framework tell."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from hypocenter import launcher
from hypocenter.nouns import Attempt, Place
from hypocenter.record.place_file import write_place
from hypocenter.session.claims import claims


class PlaceKeeper:
    """Knows the place of this rank and keeps rank.json true.

    Args:
        directory: the run directory.
        framework: whose session this is: the only one that writes there.
        rank: (this rank, how many there are).
        warn: takes one line of text.
        device: ("cpu", ""), ("npu:3", "Ascend910B"); asked once the rank is known.
    """

    def __init__(
        self,
        directory: Path,
        framework: str,
        rank: Callable[[], tuple[int, int]],
        warn: Callable[[str], None],
        device: Callable[[], tuple[str, str]] = lambda: ("cpu", ""),
    ) -> None:
        self._directory, self._framework, self._rank, self._warn = directory, framework, rank, warn
        self._device = device
        self._launcher, self._local_rank = launcher.launcher(os.environ), launcher.local_rank(os.environ)
        self._attempt = this_attempt()
        self._made: Place | None = None
        self._written: Place | None = None

    def current(self) -> Place:
        """Return the place of this rank as far as it is known now. Cheap enough for each step."""
        rank, world_size = self._rank()
        if self._made is None or (self._made.rank, self._made.world_size) != (rank, world_size):
            device, name = self._device()
            self._made = Place(
                rank=rank,
                world_size=world_size,
                local_rank=self._local_rank,
                host=self._attempt.host,
                device=device,
                device_name=name,
                launcher=self._launcher,
            )
        return self._made

    def keep(self) -> Place:
        """Return the current place, and write it to rank.json if it has changed since it was written last."""
        place = self.current()
        if place is not self._written and place != self._written and claims(self._directory, self._framework):
            self._written = place
            problem = write_place(self._directory, place, self._attempt)
            if problem:
                self._warn(f"rank.json could not be written: {problem}")
        return place


def this_attempt() -> Attempt:
    """Describe this attempt to run the job: its number, host and process, and that it began now."""
    now_ns = time.time_ns()
    return Attempt(
        number=launcher.attempt(os.environ),
        host=socket.gethostname(),
        pid=os.getpid(),
        started=datetime.fromtimestamp(now_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds"),
        started_ns=now_ns,
    )
