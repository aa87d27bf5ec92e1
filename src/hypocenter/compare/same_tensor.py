"""Which rows of backward are of one and the same tensor, and whose code computed its gradient.

The gradient of a tensor is seen at each module that gave it (grad_out) and that took it (grad_in), all at one moment,
in no order that says anything: rows of one micro-batch with the same statistics are taken for one tensor.
"""

from __future__ import annotations

import numpy as np

from hypocenter.compare.judged import Judged
from hypocenter.compare.rows import Flags


def rows_of_tensor(judged: Judged, at: int) -> Flags:
    """Rows of backward with the values of row `at`, itself among them; of another phase the row alone."""
    if judged.spots[at].phase != "backward":
        return np.arange(len(judged)) == at
    rows = judged.aligned.baseline
    same = (judged.phase == "backward") & (rows.microbatch == rows.microbatch[at]) & (rows.lane == rows.lane[at])
    for name in ("sum", "sumsq", "absmax"):
        same &= rows.values[name] == rows.values[name][at]
    return same & (rows.counts["n"] == rows.counts["n"][at]) | (np.arange(len(judged)) == at)


def producer(judged: Judged, at: int) -> int:
    """The row that names whose code computed the gradient of row `at`.

    That is `grad_in` of the module that took the tensor, if its own output gradients agree; of several the innermost
    around them. Where no module took it, the outermost module that gave it: the code around that one is to blame.
    """
    if judged.spots[at].phase != "backward":
        return at
    same = rows_of_tensor(judged, at) & judged.differs
    takers = [i for i in _rows(judged, same, "grad_in") if _has_good_gradient(judged, i)]
    if takers:
        return _common(judged, takers)
    givers = [i for i in _rows(judged, same, "grad_out") if _is_in(judged.spots[at].site, judged.spots[i].site)]
    return min([at, *givers], key=lambda i: len(judged.spots[i].site))


def _rows(judged: Judged, among: Flags, port: str) -> list[int]:
    found: list[int] = np.flatnonzero(among & np.char.startswith(judged.port, port)).tolist()
    return found


def _has_good_gradient(judged: Judged, at: int) -> bool:
    """Whether the module's own output gradients were compared, and agree."""
    spot = judged.spots[at]
    own = (judged.site == spot.site) & (judged.call == spot.call) & np.char.startswith(judged.port, "grad_out")
    own &= judged.phase == "backward"
    return bool(own.any()) and not bool((own & judged.differs).any())


def _common(judged: Judged, rows: list[int]) -> int:
    """Of the modules that took one tensor the only one, or the innermost that holds all others."""
    sites = [judged.spots[i].site for i in rows]
    leaves = [i for i, site in zip(rows, sites, strict=True) if not any(_is_in(other, site) for other in sites)]
    if len(leaves) == 1:
        return leaves[0]
    around = [i for i in rows if all(_is_in(judged.spots[leaf].site, judged.spots[i].site) for leaf in leaves)]
    return max(around, key=lambda i: len(judged.spots[i].site)) if around else leaves[0]


def _is_in(site: str, outer: str) -> bool:
    return site != outer and (outer == "" or site.startswith(f"{outer}."))
