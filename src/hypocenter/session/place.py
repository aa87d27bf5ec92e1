"""Where this process stands among the ranks: told to the recording as rank.json, again when more becomes known."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hypocenter import launcher
from hypocenter.nouns import Place
from hypocenter.record.place_file import write_place
from hypocenter.session.attempt import this_attempt
from hypocenter.session.claims import claims
from hypocenter.session.rank import rank_and_world_size
from hypocenter.tap.names import NameMap
from hypocenter.tap.topology.survey import Standing, Survey


class PlaceKeeper:
    """Knows the place of this rank and keeps rank.json true.

    Args:
        directory: the run directory.
        warn: takes one line of text.
        names: of the models, whose wrappers, devices and meshes tell where this rank stands.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None], names: NameMap | None = None) -> None:
        self._directory, self._warn = directory, warn
        self._survey = Survey(names if names is not None else NameMap())
        self._launcher, self._local_rank = launcher.launcher(os.environ), launcher.local_rank(os.environ)
        self._is_surveyed, self._nowhere = True, Standing()
        self._made: tuple[object, Place] | None = None
        self._written: Place | None = None
        self._attempt = this_attempt()

    def attach(self) -> Callable[[], None]:
        """Watch for what will tell the layout; returns the undo."""
        return self._survey.attach()

    def current(self) -> Place:
        """What is known now: cheap enough for each step."""
        rank, world_size = rank_and_world_size()
        standing = self._standing(rank, world_size)
        if self._made is None or self._made[0] is not standing or self._made[1].rank != rank:
            self._made = (
                standing,
                Place(
                    rank=rank,
                    world_size=world_size,
                    local_rank=self._local_rank,
                    host=self._attempt.host,
                    device=standing.device.device,
                    device_name=standing.device.name,
                    serial=standing.device.serial,
                    launcher=self._launcher,
                    coords=standing.layout.coords,
                    groups=dict(standing.layout.groups),
                    source=standing.layout.source,
                    layers=standing.layers,
                ),
            )
        return self._made[1]

    def _standing(self, rank: int, world_size: int) -> Standing:
        if self._is_surveyed:
            try:
                return self._survey.standing(rank, world_size)
            except Exception as error:  # another version of torch or of a framework
                self._is_surveyed = False
                self._warn(f"where this rank stands is not known: {type(error).__name__}: {error}")
        return self._nowhere

    def keep(self) -> Place:
        """The current place, written to rank.json when it is not what was written last."""
        place = self.current()
        if place != self._written and claims(self._directory, "torch"):
            self._written = place
            problem = write_place(self._directory, place, self._attempt)
            if problem:
                self._warn(f"rank.json could not be written: {problem}")
        return place
