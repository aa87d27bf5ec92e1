"""In which way gradients of replicas differ, from their digests, norms and small sketches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hypocenter.detect.replica_columns import Member

Kind = Literal["rounding", "factor", "element", "other"]

ROUNDING = {"float32": 1e-5, "float64": 1e-10, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative differences that another order of adding up may make: a hundred ulp in float32, four in half precision."""
PARALLEL = 2e-3  # relative residual of a sketch after the best factor is taken out; float32 sketches are good to 1e-5
ONE_ELEMENT = 0.02  # relative spread of a difference's sketch whose entries are all ± the change of one element
FEW = 8  # elements; sketches of so few are parallel, or of one element, by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the members of one group differ in one value."""

    site: str
    ranks: tuple[int, ...]  # of the group, as far as recorded
    odd: tuple[int, ...] = ()  # ranks that differ from the majority; () when there is none (two ranks)
    kind: Kind = "other"
    factors: dict[int, float] = field(default_factory=dict[int, float])  # rank -> of the first rank's value
    largest: int | None = None  # the rank whose norm is far above the others'
    change: float | None = None  # kind element: by how much


def difference(site: str, members: Sequence[Member]) -> Difference:
    """Classify one value that is not the same on all members."""
    ranks = tuple(m.rank for m in members)
    counted = Counter(m.digest for m in members).most_common(2)
    has_majority = len(counted) > 1 and counted[0][1] > counted[1][1] and 2 * counted[0][1] > len(members)
    usual = counted[0][0] if has_majority else members[0].digest
    base = next(m for m in members if m.digest == usual)
    others = [m for m in members if m.digest != usual]
    found = [_against(base, other) for other in others]
    kinds: set[Kind] = {each[0] for each in found if each[0] != "rounding"}
    kind: Kind = "rounding" if not kinds else next(iter(kinds)) if len(kinds) == 1 else "other"
    factors = {base.rank: 1.0} | {m.rank: 1.0 for m in members if m.digest == usual}
    factors |= {other.rank: factor for other, (_, factor, _) in zip(others, found, strict=True)}
    return Difference(
        site=site, ranks=ranks, odd=tuple(m.rank for m in others) if has_majority else (), kind=kind,
        factors=dict(sorted(factors.items())) if kind == "factor" else {}, largest=_largest(members),
        change=found[0][2] if kind == "element" else None,
    )  # fmt: skip


def common_factors(differences: Sequence[Difference]) -> dict[int, float] | None:
    """The factors by rank when all values that differ beyond rounding differ by the same other than 1; else None."""
    real = [d for d in differences if d.kind != "rounding"]
    if not real or any(d.kind != "factor" for d in real):
        return None
    by_group: dict[tuple[int, ...], dict[int, float]] = {}
    for each in real:
        known = by_group.setdefault(each.ranks, each.factors)
        relative = [_ratio(known, r) / _ratio(each.factors, r) - 1.0 for r in each.ranks if r in known]
        if any(abs(value) > 10 * PARALLEL for value in relative):
            return None
    factors = by_group[real[0].ranks]
    is_one = all(abs(_ratio(factors, rank) - 1.0) <= 10 * PARALLEL for rank in factors)
    return None if is_one else factors


def _ratio(factors: dict[int, float], rank: int) -> float:
    return factors[rank] / next(iter(factors.values()))


def _against(base: Member, other: Member) -> tuple[Kind, float, float | None]:
    """(kind, factor, change of one element) of another member's value against the usual one."""
    a, b = base.sketch, other.sketch
    if a is None or b is None or len(a) != len(b) or not all(map(math.isfinite, (*a, *b))):
        return "other", 1.0, None
    tolerance = ROUNDING.get(base.dtype, ROUNDING["float32"])
    size = max(math.hypot(*a), math.hypot(*b))
    change = [y - x for x, y in zip(a, b, strict=True)]
    if math.hypot(*change) <= tolerance * size:
        return "rounding", 1.0, None
    if min(base.n, other.n) < FEW:
        return "other", 1.0, None
    least, most = min(map(abs, change)), max(map(abs, change))
    if most > 1e-4 * size and most - least <= ONE_ELEMENT * most:
        return "element", 1.0, most
    square = math.fsum(x * x for x in a)
    factor = math.fsum(x * y for x, y in zip(a, b, strict=True)) / square if square else 0.0
    residual = math.hypot(*(y - factor * x for x, y in zip(a, b, strict=True)))
    norms = math.sqrt(other.sumsq / base.sumsq) if base.sumsq and other.sumsq else abs(factor)
    is_factor = factor > 0 and residual <= max(PARALLEL, tolerance) * math.hypot(*b)
    if is_factor and abs(norms / factor - 1.0) <= max(10 * PARALLEL, tolerance):
        return "factor", factor, None
    return "other", 1.0, None


def _largest(members: Sequence[Member]) -> int | None:
    ordered = sorted(members, key=lambda m: m.sumsq)
    is_far = ordered[-1].sumsq > 100 * ordered[-2].sumsq  # a norm ten times the next
    return ordered[-1].rank if is_far else None
