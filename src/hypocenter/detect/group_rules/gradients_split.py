"""A gradient that was the same on several ranks, step after step, is no longer.

What it means
    These ranks hold copies of a parameter and updated them with one and the same gradient. From this step on they do
    not: it is not added up over them any more, or something changes it on one of them afterwards. Their copies go
    apart.

How it is decided
    At every step, from the norms that each rank records anyway: no wrapper, no mesh and no placement has to be known.
    Ranks whose norms of a parameter were equal, bit for bit, at each of the first steps that had a gradient, share it.
    It fires when such norms differ by more than rounding. What only looks at some steps (HC301, HC303) is dated by it.

What to do
    Look at what runs between backward and the update on the odd rank: the all-reduce and its group, `no_sync`, a hook,
    a condition that holds on some ranks only.

When it is wrong
    Where ranks are meant to stop sharing (local SGD after a warm-up): if their parameters are averaged between updates,
    it is a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import ranks_text, values_words, who
from hypocenter.detect.replica_columns import codes
from hypocenter.detect.replica_facts import facts
from hypocenter.detect.replica_track import is_last
from hypocenter.nouns import Finding

if TYPE_CHECKING:
    import pyarrow as pa

CODE = "HC309"
LEARNED = 3  # steps with a gradient, over which ranks must have had the same one
ROUNDING = 1e-4  # relative, of a norm

_Norms = NDArray[np.float64]  # [n parameters, n ranks], squared; NaN where there is none


@dataclass(slots=True)
class _Shared:
    """Which ranks share which gradients.

    Attributes:
        rows: of each parameter in `first` and `n_steps`.
        first: [n parameters, n ranks]: the first of the ranks that this one shares with.
        n_steps: [n parameters]: so far, with a gradient.
        broken: the first step at which some did not, and what was found.
    """

    rows: dict[str, int] = field(default_factory=dict)
    first: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    n_steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    broken: tuple[int, tuple[str, ...], dict[int, float]] | None = None

    def rows_of(self, sites: list[str], n_ranks: int) -> NDArray[np.int64]:
        """Return the rows of these parameters; new ones are added."""
        new = [site for site in sites if site not in self.rows]
        if new:
            self.rows.update(zip(new, range(len(self.rows), len(self.rows) + len(new)), strict=True))
            together = np.zeros((len(new), n_ranks), dtype=np.int64)
            self.first = np.concatenate([self.first.reshape(-1, n_ranks), together])
            self.n_steps = np.concatenate([self.n_steps, np.zeros(len(new), dtype=np.int64)])
        return np.array([self.rows[site] for site in sites], dtype=np.int64)


@group_rule(CODE, "desync", severity="warning", reads=("grad", "digest", "scalar"), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report the split that was found first."""
    shared: _Shared = panel.history.notes[CODE].setdefault("shared", _Shared())
    facts(panel)
    if len(panel.ranks) > 1 and shared.broken is None:
        _look(panel, shared)
    if is_last(panel) and shared.broken is not None:
        yield _finding(panel, *shared.broken)


def _look(panel: Panel, shared: _Shared) -> None:
    table = panel.where(phase="grad", port="grad")
    if not table.num_rows or any(record.n_bad_grads or record.skipped for record in panel.records.values()):
        return
    sites, norms = _norms(table, list(panel.ranks))
    if not sites:
        return
    rows = shared.rows_of(sites, len(panel.ranks))
    first = shared.first[rows]
    usual = np.take_along_axis(norms, first, axis=1)
    is_known = shared.n_steps[rows] >= LEARNED
    differs = is_known[:, None] & _differs(norms, usual)
    if differs.any():
        broken = _began_with(norms, usual, differs)
        ranks = np.array(panel.ranks)
        worst = int(broken[0])
        near = first[worst] == first[worst][np.flatnonzero(differs[worst])[0]]
        values = {int(r): float(np.sqrt(v)) for r, v in zip(ranks[near], norms[worst][near], strict=True) if v == v}
        shared.broken = panel.step, tuple(sites[i] for i in broken), values
        return
    has_one = (norms > 0).any(axis=1)
    learning = np.flatnonzero(has_one & ~is_known)
    if len(learning):
        shared.first[rows[learning]] = _refined(first[learning], norms[learning])
    shared.n_steps[rows[has_one]] += 1


def _differs(norms: _Norms, usual: _Norms) -> NDArray[np.bool_]:
    """Return where norms are further apart than rounding; False where one is missing."""
    return np.abs(norms - usual) > 2 * ROUNDING * np.maximum(norms, usual)


def _began_with(norms: _Norms, usual: _Norms, differs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rows that differ by more than the factor of clipping that all have; all rows if none do."""
    rows = np.flatnonzero(differs.any(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = norms[rows] / usual[rows]
    common = np.median(np.where(np.isfinite(factors), factors, 1.0), axis=0)
    own = rows[(differs[rows] & _differs(norms[rows], common * usual[rows])).any(axis=1)]
    return own if len(own) else rows


def _norms(table: pa.Table, ranks: list[int]) -> tuple[list[str], _Norms]:
    """Return parameters, and their norms on each rank; a parameter with two rows on a rank is left out."""
    site, sites = codes(table, "site")
    column = np.searchsorted(ranks, table["rank"].to_numpy())
    norms = np.full((len(sites), len(ranks)), np.nan)
    norms[site, column] = table["sumsq"].to_numpy()
    n_rows = np.zeros((len(sites), len(ranks)), dtype=np.int64)
    np.add.at(n_rows, (site, column), 1)
    single = np.flatnonzero((n_rows <= 1).all(axis=1) & ((n_rows == 1).sum(axis=1) > 1))
    return [sites[i] for i in single], norms[single]


def _refined(first: NDArray[np.int64], norms: _Norms) -> NDArray[np.int64]:
    """Return for each rank the first of those that shared with it before and have the same norm now."""
    n_sites, n_ranks = norms.shape
    row, column = np.repeat(np.arange(n_sites), n_ranks), np.tile(np.arange(n_ranks), n_sites)
    bits = norms.view(np.int64).ravel()
    order = np.lexsort((column, bits, first.ravel(), row))
    keys = np.stack([row, first.ravel(), bits])[:, order]
    starts = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    leaders = column[order][np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))]
    out = np.empty(n_sites * n_ranks, dtype=np.int64)
    out[order] = leaders
    return out.reshape(n_sites, n_ranks)


def _finding(panel: Panel, step: int, sites: tuple[str, ...], norms: dict[int, float]) -> Finding:
    usual = sorted(norms.values())[len(norms) // 2]
    odd = tuple(rank for rank, norm in norms.items() if abs(norm - usual) > ROUNDING * usual)
    is_majority = 0 < 2 * len(odd) < len(norms)
    what = sites[0] if len(sites) == 1 else f"{len(sites)} parameters"
    is_averaged = facts(panel).is_averaged(tuple(norms))
    return Finding(
        code=CODE, kind="desync", severity="note" if is_averaged else "warning", step=step,
        title=f"the gradient of {what} is no longer the same on {ranks_text(norms)}",
        rank=odd[0] if is_majority else min(norms), phase="grad", site=sites[0], port="grad", param=sites[0],
        cause="missing-gradient-sync", confidence="likely",
        why=(
            who(tuple(norms), odd if is_majority else ()),
            f"its norm is {values_words(norms)}; at the steps before it was the same, bit for bit",
        ),
        then=("their copies of the parameter go apart",),
    )  # fmt: skip
