"""A broken law is told under what explains it: under a finding that knows more, or one law under another.

A law says that two sides of an equation differ, whatever the reason. A sum over ranks that came out wrong, a device
that computes wrongly, a rank with other gradients break the law of gradients too; a gradient that is left out leaves
its parameter without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypocenter.diagnose.group import Folded
from hypocenter.nouns import Finding

LAWS = ("HC232", "HC308", "HC309", "HC235", "HC231", "HC233")  # the one that says most first
REPLICAS = "HC301"  # they go apart after what a collective gave back
_KINDS = frozenset({"comm", "desync", "hardware", "exploding", "spike", "nonfinite", "loss-scale-collapse", "config"})


_OF_RANKS = frozenset({"HC308", "HC309"})
_APART = frozenset({"desync", "hardware"})
LATER = 16  # steps, of what is seen only when replicas are compared


def with_laws(folded: Sequence[Folded]) -> tuple[Folded, ...]:
    """The same findings; laws that another one explains are told in its `then`."""
    under: dict[int, list[Finding]] = {}
    kept: list[Folded] = []
    for each in folded:
        leader = _leader(each.finding, folded) if each.finding.code in (*LAWS, REPLICAS) else None
        if leader is None:
            kept.append(each)
        else:
            under.setdefault(id(leader), []).append(each.finding)
    return tuple(_with(each, under.get(id(each), ())) for each in kept)


def _leader(law: Finding, folded: Sequence[Folded]) -> Folded | None:
    return next((each for each in folded if _explains(each.finding, law)), None)


def _explains(other: Finding, law: Finding) -> bool:
    if other.severity == "note":
        return False
    if law.code == REPLICAS:
        return other.cause == "collective-fault" and other.step <= law.step
    if other.code in LAWS:
        is_first = LAWS.index(other.code) < LAWS.index(law.code)
        return is_first and other.step == law.step and (other.param == law.param or law.severity == "note")
    if other.kind == "stagnation" and other.step == law.step and other.param == law.param is not None:
        return True  # it says why, of this parameter
    if other.kind not in _KINDS:
        return False
    of_ranks = law.code in _OF_RANKS and other.severity == "error" and other.step <= law.step
    return of_ranks or other.step == law.step or _is_seen_later(other, law)


def _is_seen_later(other: Finding, law: Finding) -> bool:
    """Whether it is of the same parameter, or of replicas that lost their gradients, when they are compared next."""
    is_same = other.param == law.param is not None or law.code == "HC309"
    return other.kind in _APART and is_same and law.step < other.step <= law.step + LATER


def _with(leader: Folded, laws: Sequence[Finding]) -> Folded:
    if not laws:
        return leader
    finding = leader.finding
    began = min((law for law in laws if law.step < finding.step), key=lambda law: law.step, default=None)
    if began is not None:
        why = f"it began at step {began.step}: {began.title}"
        finding = replace(finding, step=began.step, why=(*finding.why, why))
        if began.param is not None:
            finding = replace(finding, param=began.param, site=began.site)
    said = tuple(f"step {law.step}: {law.title}" for law in laws if law is not began)
    return replace(leader, finding=replace(finding, then=(*finding.then, *said)))
