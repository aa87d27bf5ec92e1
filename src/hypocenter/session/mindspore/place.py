"""Where this process stands among the ranks, as rank.json: what the launcher and MindSpore tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter import launcher
from hypocenter.nouns import Place
from hypocenter.record.place_file import write_place
from hypocenter.session.attempt import this_attempt
from hypocenter.session.claims import claims


class PlaceKeeper:
    """Knows the place of this rank and keeps rank.json true.

    Args:
        directory: the run directory.
        rank: (rank, world size).
        warn: takes one line of text.
    """

    def __init__(self, directory: Path, rank: Callable[[], tuple[int, int]], warn: Callable[[str], None]) -> None:
        self._directory, self._rank, self._warn = directory, rank, warn
        self._attempt = this_attempt()
        self._made: Place | None = None
        self._written: Place | None = None

    def current(self) -> Place:
        """What is known now: cheap enough for each step."""
        rank, world_size = self._rank()
        if self._made is None or (self._made.rank, self._made.world_size) != (rank, world_size):
            device, name = _device()
            self._made = Place(
                rank=rank,
                world_size=world_size,
                local_rank=launcher.local_rank(os.environ),
                host=self._attempt.host,
                device=device,
                device_name=name,
                launcher=launcher.launcher(os.environ),
            )
        return self._made

    def keep(self) -> Place:
        """The current place, written to rank.json when it is not what was written last."""
        place = self.current()
        if place != self._written and claims(self._directory, "mindspore"):
            self._written = place
            problem = write_place(self._directory, place, self._attempt)
            if problem:
                self._warn(f"rank.json could not be written: {problem}")
        return place


def _device() -> tuple[str, str]:
    """("cpu", ""), ("npu:3", "Ascend910B")."""
    target = str(ms.get_context("device_target"))
    if target == "CPU":
        return "cpu", ""
    number = int(ms.get_context("device_id"))
    try:
        name = str(ms.hal.get_device_name(number))
    except Exception:  # another version of MindSpore
        name = target
    return ("npu" if target == "Ascend" else "cuda") + f":{number}", name
