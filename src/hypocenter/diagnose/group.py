"""A finding in the making, with what has been found to follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypocenter.diagnose.fall import Fall
from hypocenter.diagnose.judged_evidence import JudgedEvidence
from hypocenter.nouns import Finding

EACH_STEP = ("HC203",)  # gradients that underflow do so at every recorded step
OF_THE_SCALE = ("HC201", "HC202")  # they gather what a falling loss scale has left elsewhere
TOLD_WHOLE = ("HC214", "HC219")  # their titles are told with what they follow
FORECAST = "HC205"  # an overflow that was seen coming


@dataclass(slots=True, kw_only=True)
class Group:
    """A finding in the making: what it is, and all that follows from it."""

    finding: Finding
    piece: JudgedEvidence | None = None
    same: list[Finding] = field(default_factory=list)  # the same cause at the same place, at other steps or ranks
    followers: list[Finding] = field(default_factory=list)
    fall: Fall | None = None  # of the loss scale, that belongs to it
    ruined_from: int | None = None  # step at which the fallen scale broke the parameters

    @property
    def is_located(self) -> bool:
        """Whether a replay showed where it started."""
        return self.piece is not None and self.piece.is_located


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A finding, and whether it says where the failure started."""

    finding: Finding
    is_located: bool


def told_under(
    folded: Sequence[Folded],
    leader_of: Callable[[Folded], Folded | None],
    told: Callable[[Folded, Sequence[Finding]], Folded],
) -> tuple[Folded, ...]:
    """Return the findings without those that another one explains and tells of.

    Args:
        leader_of: gives the one that explains a finding; None: nothing does.
        told: gives a finding that tells of those that it explains.
    """
    under: dict[int, list[Finding]] = {}
    kept: list[Folded] = []
    for each in folded:
        leader = leader_of(each)
        if leader is None:
            kept.append(each)
        else:
            under.setdefault(id(leader), []).append(each.finding)
    return tuple(told(each, under[id(each)]) if id(each) in under else each for each in kept)
