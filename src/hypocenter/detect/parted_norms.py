"""Norms beside tensor-parallel parts of layers: as wide as copies are, begun as one constant, and trained apart.

Nothing marks them. A norm of the residual stream is a copy on each rank; that of a part of a layer is narrower, or
there are norms of the stream beside it, which are not apart.
"""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_columns import compare
from hypocenter.detect.replica_rows import BEFORE, GRAD, PARAM
from hypocenter.detect.replica_track import NORM, difference, track

if TYPE_CHECKING:
    import pyarrow as pa

_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Norms:
    """All norms of a model whose layers are cut over the ranks.

    Attributes:
        names: their parameters; none where they are not all as wide as copies, or did not begin alike.
        since: the first step at which the gradients of all differ, while those of copies are equal.
        n: how many such steps there were.
        have_parted: all of them differ.
    """

    names: frozenset[str] = _NONE
    since: int = 0
    n: int = 0
    have_parted: bool = False


def note(panel: Panel) -> Norms:
    """Take in a step; return what is known of norms."""
    import pyarrow.compute as pc

    known: dict[str, Norms] = panel.history.notes["norms of the stream"]
    groups, copies = panel.groups("tp"), track(panel).typed.get("tp", _NONE)
    if not groups or not copies or "tp" not in track(panel).by_content:
        return Norms()
    is_replica = pc.and_(pc.is_valid(panel.table["digest"]), pc.equal(panel.table["n_nan"], 0))
    rows = panel.table.filter(is_replica)
    values = rows.filter(pc.and_(pc.equal(rows["port"], PARAM), pc.equal(rows["call"], BEFORE)))
    if not values.num_rows:
        return known.get("tp", Norms())
    if "tp" not in known:
        known["tp"] = Norms(names=_of_the_stream(values, groups, copies))
        return _with_gradients(known["tp"], panel, rows, copies)
    norms = known["tp"]
    norms.have_parted = bool(norms.names) and norms.names <= _apart(values, groups, is_exact=True)
    return _with_gradients(norms, panel, rows, copies)


def _with_gradients(norms: Norms, panel: Panel, rows: pa.Table, copies: Collection[str]) -> Norms:
    import pyarrow.compute as pc

    if norms.names:
        grads = rows.filter(pc.and_(pc.equal(rows["port"], GRAD), pc.greater(rows["sumsq"], 0.0)))
        apart = _apart(grads, panel.groups("tp"), is_exact=False)
        if norms.names <= apart and not apart & set(copies):
            norms.since = norms.since if norms.n else panel.step
            norms.n += 1
    return norms


def _of_the_stream(values: pa.Table, groups: Sequence[Sequence[int]], copies: Collection[str]) -> frozenset[str]:
    """The parameters of all norms, if each is a vector as wide as some copy, and the same on all ranks."""
    of_all = values.select(["site", "module", "shape", "placement"]).to_pylist()
    norms = {row["site"]: tuple(row["shape"]) for row in of_all if NORM.search(row["module"] or "")}
    widths = {size for row in of_all if row["site"] in copies and row["site"] not in norms for size in row["shape"]}
    is_marked = any("tp=" in (row["placement"] or "") for row in of_all if row["site"] in norms)
    are_whole = all(len(shape) == 1 and shape[0] in widths for shape in norms.values())
    if len(norms) < 2 or is_marked or not are_whole or norms.keys() & _apart(values, groups, is_exact=True):
        return _NONE
    return frozenset(norms)


def _apart(table: pa.Table, groups: Sequence[Sequence[int]], *, is_exact: bool) -> set[str]:
    """Which differ over the ranks of a group: in any bit, or by more than rounding."""
    compared = compare(table, groups)
    entries = [(compared.sites[compared.site[e]], int(e)) for e in np.flatnonzero(compared.differs)]
    return {name for name, e in entries if is_exact or difference(name, compared.members(e)).kind != "rounding"}
