"""Where this process stands among the ranks: told to the recording as rank.json, again when more becomes known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypocenter.nouns import Place
from hypocenter.session import place_keeper
from hypocenter.session.rank import rank_and_world_size
from hypocenter.tap.names import NameMap
from hypocenter.tap.topology.survey import Standing, Survey


class PlaceKeeper(place_keeper.PlaceKeeper):
    """Knows the place of this rank and keeps rank.json true.

    Args:
        directory: the run directory.
        warn: takes one line of text.
        names: of the models, whose wrappers, devices and meshes tell where this rank stands.
        rank: (this rank, how many there are).
    """

    def __init__(
        self,
        directory: Path,
        warn: Callable[[str], None],
        names: NameMap | None = None,
        rank: Callable[[], tuple[int, int]] = rank_and_world_size,
    ) -> None:
        super().__init__(directory, "torch", rank, warn)
        self._survey = Survey(names if names is not None else NameMap())
        self._is_surveyed, self._nowhere = True, Standing()
        self._standing_made = self._nowhere  # what the place was made of

    def attach(self) -> Callable[[], None]:
        """Watch for what will tell the layout; returns the undo."""
        return self._survey.attach()

    def current(self) -> Place:
        """Return the place of this rank as far as it is known now. Cheap enough for each step."""
        rank, world_size = self._rank()
        standing = self._standing(rank, world_size)
        if self._made is None or self._standing_made is not standing or self._made.rank != rank:
            self._standing_made = standing
            self._made = Place(
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
            )
        return self._made

    def _standing(self, rank: int, world_size: int) -> Standing:
        if self._is_surveyed:
            try:
                return self._survey.standing(rank, world_size)
            except Exception as error:  # another version of torch or of a framework
                self._is_surveyed = False
                self._warn(f"where this rank stands is not known: {type(error).__name__}: {error}")
        return self._nowhere
