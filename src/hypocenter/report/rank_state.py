"""What one rank of a job came to."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.nouns import Coords


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank of the job, recorded or not."""

    rank: int
    coords: Coords  # all None where nobody told the layout
    host: str
    device: str
    first_bad_step: int | None  # loss or gradients not finite, or an error, other than its loss, blamed on this rank
    last_step: int | None  # completed
    is_recorded: bool  # it left a folder
    is_lost: bool  # it left none, or the diagnosis says that it died or is missing
    is_behind: bool = False  # the others are steps ahead
    is_away: bool = False  # the job was started again without it
    says: str = ""  # what became of it, of a job that is followed: `silent since 12:30:01`
