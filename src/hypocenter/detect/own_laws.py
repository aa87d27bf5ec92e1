"""The law of one rank's own gradients: what its optimizer uses is what its replay gives, with one factor for all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hypocenter.detect.columns import Bools, Columns, Floats, Ints
from hypocenter.detect.law_rows import LABELS, MADE, SKETCH, USED
from hypocenter.detect.law_sketches import TOLERANCE


def common_factors(used: Floats, made: Floats, starts: Ints) -> tuple[Floats, Bools]:
    """Find by what factor gradients are what a replay gives, for several owners (ranks, steps) at once.

    Args:
        used: sketches of what the optimizer uses, a row for each parameter of each owner.
        made: sketches of what the replay gives, none of them all zeros.
        starts: first row of each owner, and behind the last the number of rows.

    Returns:
        By owner the factor of most of its rows, NaN where there is none; and which rows have it.
    """
    sizes = np.diff(starts)
    if not len(sizes):
        return np.zeros(0), np.zeros(0, np.bool_)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    factors = (used * made).sum(axis=1) / (made * made).sum(axis=1)
    usual = factors[np.lexsort((factors, owner))][starts[:-1] + (sizes - 1) // 2]
    wanted = usual[owner][:, None] * made
    is_near = np.linalg.norm(used - wanted, axis=1) <= TOLERANCE * np.linalg.norm(wanted, axis=1)
    is_common = (usual > 0) & (2 * np.add.reduceat(is_near.astype(np.int64), starts[:-1]) > sizes)
    return np.where(is_common, usual, np.nan), is_near


@dataclass(slots=True)
class OwnLaw:
    """Looks at the sketches of one rank, batch by batch, without any other rank's."""

    _steps: list[Ints] = field(default_factory=list[Ints])
    _sites: list[Ints] = field(default_factory=list[Ints])
    _are_used: list[Bools] = field(default_factory=list[Bools])
    _sketches: list[Floats] = field(default_factory=list[Floats])

    def add(self, columns: Columns) -> None:
        """Take in the next batch of its rows."""
        kinds = columns.kinds
        rows = columns.of(kinds.equal("port", MADE, USED) & ~kinds.equal("site", LABELS))
        if not rows.n:
            return
        lists = rows.column("sketch")
        is_whole = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) == SKETCH
        rows = rows.only(is_whole)
        numbers = rows.column("sketch").flatten().to_numpy(zero_copy_only=False)
        self._steps.append(rows.steps)
        self._sites.append(rows.hashes("site"))
        self._are_used.append(rows.rows(rows.kinds.equal("port", USED)))
        self._sketches.append(numbers.astype(np.float64).reshape(-1, SKETCH))

    @property
    def is_quiet(self) -> bool:
        """Whether HC308 has nothing to say of this rank by itself, for sure, at whichever of its steps it is asked."""
        if not self._steps:
            return True
        steps, sites = (np.concatenate(each) for each in (self._steps, self._sites))
        are_used = np.concatenate(self._are_used)
        order = np.lexsort((are_used, sites, steps))
        steps, sites, are_used = steps[order], sites[order], are_used[order]
        sketches = np.concatenate(self._sketches)[order]
        is_next = (steps[1:] == steps[:-1]) & (sites[1:] == sites[:-1])
        if (is_next & (are_used[1:] == are_used[:-1])).any():
            return False  # written twice
        at = np.flatnonzero(is_next)
        at = at[sketches[at].any(axis=1)]
        if not len(at):
            return True
        return _is_quiet(steps[at], sites[at], sketches[at + 1], sketches[at])


def _is_quiet(steps: Ints, sites: Ints, used: Floats, made: Floats) -> bool:
    """Of pairs in the order of steps and sites: the law is kept at all steps or at none, in the same way."""
    factors, is_near = common_factors(used, made, _starts(steps))
    is_kept = ~np.isnan(factors)
    if is_kept.all():
        by_site = np.argsort(sites, kind="stable")
        turns = np.diff(sites[by_site]) == 0
        are_alike = bool((is_near[by_site][1:] == is_near[by_site][:-1])[turns].all())
        return are_alike and float(factors.max()) <= (1 + TOLERANCE) * max(1.0, float(factors.min()))
    return not is_kept.any() and not _holds_the_one_before(steps, sites, used, made)


def _holds_the_one_before(steps: Ints, sites: Ints, used: Floats, made: Floats) -> bool:
    """Whether at any step what is used is a multiple of that of the step before plus what this one gives."""
    order = np.lexsort((steps, sites))
    follows = (np.diff(sites[order]) == 0) & (np.diff(steps[order]) == 1)
    before, now = order[:-1][follows], order[1:][follows]
    both = used[before] + made[now]
    some = used[before].any(axis=1) & both.any(axis=1)
    now, both = now[some], both[some]
    in_order = np.argsort(now)
    now, both = now[in_order], both[in_order]
    factors, _ = common_factors(used[now], both, _starts(steps[now]))
    return not bool(np.isnan(factors).all())


def _starts(steps: Ints) -> NDArray[np.int64]:
    """First row of each step, and behind the last the number of rows; steps rise."""
    if not len(steps):
        return np.zeros(1, np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(steps)) + 1, [len(steps)]])
