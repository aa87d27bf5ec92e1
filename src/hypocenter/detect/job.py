"""What a rule about the end of a job sees: for every rank where it was last, whether it lives, what it completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypocenter.nouns import Place, Run
from hypocenter.record.liveness import Liveness
from hypocenter.record.whereabouts import Whereabouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of several ranks, over or not.

    `whereabouts` are of one attempt, the latest unless `is_latest` is false. A rank that is missing there left none.
    """

    run: Run
    attempt: int = 0  # of an elastic job
    is_latest: bool = True
    now_ns: int  # Unix time of looking
    ranks: tuple[int, ...] = ()  # that left a folder
    whereabouts: Mapping[int, Whereabouts] = field(default_factory=dict)
    liveness: Mapping[int, Liveness] = field(default_factory=dict)
    last_steps: Mapping[int, int] = field(default_factory=dict)  # by rank: the last step it completed and recorded
    first_steps: Mapping[int, int] = field(default_factory=dict)  # by rank: the first one
    step_s: float = 0.0  # median time of a step
    places: Mapping[int, Place] = field(default_factory=dict)
    problems: tuple[str, ...] = ()  # of the recording, as the reader says them

    @property
    def world_size(self) -> int:
        """Number of ranks of the latest attempt."""
        known = [w.world_size for w in self.whereabouts.values()]
        return max(known) if known else self.run.world_size
