"""Who had the bad gradient before the reduction, or which sum overflowed, leads what all ranks have after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypocenter.nouns import Finding

BEFORE_REDUCTION = "HC313"
OVERFLOWED = "HC312"  # finite shares, a sum that is not
LOCATES = (BEFORE_REDUCTION,)  # codes that say where a failure started although its cause is unknown
_AFTER = ("HC101", "HC102", "HC106")  # gradient, loss, skipped step: what all ranks have


class Explained(Protocol):
    """The part of a group of findings that is looked at here (hypocenter.diagnose.fold.Group)."""

    finding: Finding
    same: list[Finding]
    followers: list[Finding]

    @property
    def is_located(self) -> bool:
        """Whether a replay showed where it started."""
        ...


_G = TypeVar("_G", bound=Explained)


def led_by_one_rank(groups: list[_G], ruled: Sequence[Finding], make: Callable[[Finding], _G]) -> list[Finding]:
    """Let findings of HC313 and HC312 lead groups that no replay explains, and follow those that one does.

    Args:
        groups: of evidence so far; changed in place.
        ruled: findings of rules.
        make: a group of a finding without evidence.

    Returns:
        The findings of rules that are left to be placed.
    """
    left: list[Finding] = []
    for finding in ruled:
        if finding.code not in (BEFORE_REDUCTION, OVERFLOWED) or finding.severity != "error":
            left.append(finding)
            continue
        at_step = [g for g in groups if finding.step in {f.step for f in (g.finding, *g.same)}]
        explained = next((g for g in at_step if g.is_located and _explains(g.finding, finding)), None)
        if explained is not None:
            explained.followers.append(finding)
            continue
        leader = make(finding)
        for group in at_step:
            if not group.is_located and group.finding.code in _AFTER:
                leader.followers += [group.finding, *group.same, *group.followers]
                groups.remove(group)
        groups.append(leader)
    return left


def _explains(located: Finding, finding: Finding) -> bool:
    """A replay on the same rank; of a sum, on any."""
    return located.rank == finding.rank or (finding.code == OVERFLOWED and located.cause == finding.cause)
