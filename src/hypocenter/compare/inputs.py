"""What a row of a step was computed from: the rows that must agree for it to be the place where a difference begins.

Which rows of backward are of one and the same tensor, and whose code computed its gradient.

The gradient of a tensor is seen at each module that gave it (grad_out) and that took it (grad_in), all at one moment,
in no order that says anything: rows of one micro-batch with the same statistics are taken for one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hypocenter.compare.comparison import is_given_to_loss
from hypocenter.compare.judged_step import JudgedStep
from hypocenter.compare.rows import Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The rows that a row was computed from."""

    rows: Flags
    before: Flags | None = None  # rows of the step before; of a parameter
    owner: str = ""  # the module whose code computed it
    is_between: bool = False  # by the owner's own code, between two calls


def inputs_of(judged: JudgedStep, at: int) -> Inputs:
    """Return the rows that row `at` was computed from within its step."""
    if is_given_to_loss(judged.spots[at]):
        return _given_to_loss(judged, at)
    find = _BY_PHASE.get(judged.spots[at].phase, _everything_before)
    return find(judged, at)


def enclosing(judged: JudgedStep, site: str) -> str:
    """Return the nearest module around a site that was called in this step; the root ("") when none was."""
    called = set(judged.site[judged.phase == "forward"].tolist())
    while site:
        site = site.rpartition(".")[0]
        if site in called:
            return site
    return site


def module_of(judged: JudgedStep, parameter: str) -> str:
    """Return the module that a parameter belongs to."""
    return parameter.rpartition(".")[0]


def _forward(judged: JudgedStep, at: int) -> Inputs:
    spot, order = judged.spots[at], judged.aligned.baseline.order
    here = _of_same_batch(judged, at) & (judged.phase == "forward")
    is_output = spot.port.startswith("out")
    owner = spot.site if is_output else enclosing(judged, spot.site)
    if not is_output and spot.site == "":
        return Inputs(rows=judged.phase == "data", owner="")
    entered = here & (judged.site == owner) & _starts_with(judged, "in")
    if is_output:
        entered &= judged.call == spot.call
    else:
        entered &= order < order[at]
    first = int(order[entered].min()) if entered.any() else -1
    if not is_output and entered.any():  # the latest call of the owner
        latest = judged.call[entered].max()
        entered &= judged.call == latest
        first = int(order[entered].min())
    inside = here & (order >= first) & (order < order[at])
    inside &= entered | (_starts_with(judged, "out") & (judged.site != spot.site) | _is_inside(judged, owner))
    return Inputs(
        rows=(inside | entered | _parameters(judged, owner)) & _not(at, len(judged)), owner=owner,
        is_between=not is_output,
    )  # fmt: skip


def _loss(judged: JudgedStep, at: int) -> Inputs:
    here = _of_same_batch(judged, at) & ((judged.phase == "forward") | (judged.phase == "data"))
    return Inputs(rows=here & _not(at, len(judged)), owner="", is_between=True)


def _given_to_loss(judged: JudgedStep, at: int) -> Inputs:
    given = (judged.phase == "data") & ~np.char.startswith(judged.site, "batch.loss")
    return Inputs(rows=_of_same_batch(judged, at) & given, owner="", is_between=True)


def _backward(judged: JudgedStep, at: int) -> Inputs:
    spot = judged.spots[at]
    here = _of_same_batch(judged, at)
    upstream = here & np.isin(judged.phase, ("forward", "loss"))
    earlier = here & (judged.phase == "backward") & (judged.aligned.baseline.order < judged.aligned.baseline.order[at])
    if not spot.port.startswith("grad_in"):
        return Inputs(
            rows=upstream | earlier, owner=enclosing(judged, spot.site), is_between=True,
        )  # fmt: skip
    own = here & (judged.phase == "backward") & (judged.site == spot.site) & (judged.call == spot.call)
    own &= _starts_with(judged, "grad_out")
    return Inputs(rows=own | upstream | earlier | _parameters(judged, spot.site), owner=spot.site)


def _gradient(judged: JudgedStep, at: int) -> Inputs:
    spot = judged.spots[at]
    if spot.site == "grad_norm":
        return Inputs(rows=(judged.phase == "grad") & _not(at, len(judged)), owner="grad_norm")
    owner = module_of(judged, spot.site)
    of_module = (judged.site == owner) & np.isin(judged.phase, ("forward", "backward"))
    rows = of_module & (_starts_with(judged, "in") | _starts_with(judged, "grad_out"))
    if not of_module.any():
        rows = np.isin(judged.phase, ("forward", "loss", "backward"))
    own = (judged.phase == "param") & (judged.site == spot.site)
    return Inputs(rows=rows | own | (judged.phase == "loss"), owner=spot.site)


def _everything_before(judged: JudgedStep, at: int) -> Inputs:
    return Inputs(rows=np.arange(len(judged)) < at, owner=judged.spots[at].site)


def _nothing(judged: JudgedStep, at: int) -> Inputs:
    return Inputs(rows=np.zeros(len(judged), np.bool_), owner=judged.spots[at].site)


_BY_PHASE: dict[str, Callable[[JudgedStep, int], Inputs]] = {
    "data": _nothing, "param": _nothing, "optimizer": _nothing, "forward": _forward, "loss": _loss,
    "backward": _backward, "grad": _gradient, "scaler": _nothing,
}  # fmt: skip


def _of_same_batch(judged: JudgedStep, at: int) -> Flags:
    rows = judged.aligned.baseline
    return (rows.microbatch == rows.microbatch[at]) & (rows.lane == rows.lane[at])


def _starts_with(judged: JudgedStep, word: str) -> Flags:
    return np.char.startswith(judged.port, word)


def _is_inside(judged: JudgedStep, owner: str) -> Flags:
    return np.char.startswith(judged.site, f"{owner}." if owner else "")


def _parameters(judged: JudgedStep, owner: str) -> Flags:
    return (judged.phase == "param") & _is_inside(judged, owner)


def _not(at: int, n: int) -> Flags:
    rows = np.ones(n, np.bool_)
    rows[at] = False
    return rows


def rows_of_tensor(judged: JudgedStep, at: int) -> Flags:
    """Select the rows of backward with the values of row `at`, itself included; in another phase the row alone."""
    if judged.spots[at].phase != "backward":
        return np.arange(len(judged)) == at
    rows = judged.aligned.baseline
    same = (judged.phase == "backward") & (rows.microbatch == rows.microbatch[at]) & (rows.lane == rows.lane[at])
    for name in ("sum", "sumsq", "absmax"):
        same &= rows.values[name] == rows.values[name][at]
    return same & (rows.counts["n"] == rows.counts["n"][at]) | (np.arange(len(judged)) == at)


def producer(judged: JudgedStep, at: int) -> int:
    """Return the row that names whose code computed the gradient of row `at`.

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


def _rows(judged: JudgedStep, among: Flags, port: str) -> list[int]:
    found: list[int] = np.flatnonzero(among & np.char.startswith(judged.port, port)).tolist()
    return found


def _has_good_gradient(judged: JudgedStep, at: int) -> bool:
    """Return whether the module's own output gradients were compared, and agree."""
    spot = judged.spots[at]
    own = (judged.site == spot.site) & (judged.call == spot.call) & np.char.startswith(judged.port, "grad_out")
    own &= judged.phase == "backward"
    return bool(own.any()) and not bool((own & judged.differs).any())


def _common(judged: JudgedStep, rows: list[int]) -> int:
    """Return, of the modules that took one tensor, the only innermost one, or the innermost that holds all others."""
    sites = [judged.spots[i].site for i in rows]
    leaves = [i for i, site in zip(rows, sites, strict=True) if not any(_is_in(other, site) for other in sites)]
    if len(leaves) == 1:
        return leaves[0]
    around = [i for i in rows if all(_is_in(judged.spots[leaf].site, judged.spots[i].site) for leaf in leaves)]
    return max(around, key=lambda i: len(judged.spots[i].site)) if around else leaves[0]


def _is_in(site: str, outer: str) -> bool:
    return site != outer and (outer == "" or site.startswith(f"{outer}."))
