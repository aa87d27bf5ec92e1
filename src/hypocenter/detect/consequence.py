"""Which findings are only the consequence of an earlier one: non-finite values stay once they are in the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypocenter.nouns import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A run of consecutive recorded steps, on any rank, in each of which something was not finite."""

    first: int
    last: int

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.first <= step <= self.last


def is_sick(finding: Finding) -> bool:
    """Whether a finding says that training itself was not finite in its step (not only a value that went nowhere)."""
    is_update = finding.code == "HC104" and finding.phase == "optimizer"  # it ends in a parameter
    return finding.kind == "nonfinite" and finding.severity == "error" and (finding.code in SICK_CODES or is_update)


SICK_CODES = frozenset({"HC101", "HC102", "HC103"})  # gradient, loss, parameter


def episodes(steps: Iterable[int], sick: Iterable[int]) -> tuple[Episode, ...]:
    """Group sick steps that follow each other in the list of recorded steps.

    Args:
        steps: all recorded steps, of any rank; unrecorded ones do not end an episode.
        sick: the steps in which something was not finite.
    """
    bad = set(sick)
    found: list[Episode] = []
    start: int | None = None
    last = 0
    for step in sorted(bad | set(steps)):
        if step in bad:
            start, last = (step if start is None else start), step
        elif start is not None:
            found.append(Episode(first=start, last=last))
            start = None
    if start is not None:
        found.append(Episode(first=start, last=last))
    return tuple(found)


def episode_of(step: int, found: Sequence[Episode]) -> Episode | None:
    """The episode that a step lies in."""
    return next((episode for episode in found if step in episode), None)
