"""One rank's own gradient is not finite, or far out, before it is averaged.

What it means
    After the all-reduce every rank has the NaN. Before it one had: this rank, in this parameter, while the same
    parameter's gradient was as usual on the others. What made it happened on that rank: its part of the batch, its
    device, its copy of the code or of the weights.

How it is decided
    Each rank notes the norm of its own gradients before they are reduced, where they can be seen (DDP, FSDP, Megatron,
    ZeRO, an all-reduce written by hand). Fires when it is not finite on some ranks of the data-parallel group and
    finite on others, or when it is above 1,000 times the largest of the 16 steps before and above 1,000 times every
    other rank's. Under a loss scale only steps that were not skipped count: an overflow on one rank is how a scale is
    found.

What to do
    Look at the replay of that step on that rank: a finding with a cause stands above this one when it showed the value
    again. When it did not, the value came from outside of the mathematics: run with the same data once more, and look
    at the device (ECC counters, its neighbours). Several steps on one rank mean a device to be taken out.

When it is wrong
    A batch that is truly a thousand times harder than all before, on one rank: then all its parameters are far out, not
    one, and the loss says so. Ten times is not enough to fire.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.local_rows import FAR_OUT, LOCAL, NORM, RECENT, REMEMBERED
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding, Remedy

CODE = "HC313"
_STEPS = 4  # recorded steps whose norms of all ranks are remembered
_ADVICE = "replay the step on that rank and on another; if it is finite there, look at the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The columns that count, for one step."""

    rank: Any
    site: Any  # indices into `names`
    names: list[str]
    norm: Any  # NaN or inf where it is not finite
    call: Any
    order: Any


@group_rule("HC313", "nonfinite", severity="error", reads=("local",), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """Report at most one finding of each kind a step: the rank and parameter to look at first; others in its `why`."""
    notes = panel.history.notes[CODE]
    rows = _rows(panel)
    if rows is None:
        notes["bad"] = frozenset[int]()
        return
    there = [rank for rank in panel.ranks if rank in panel.records]
    yield from _nonfinite(panel, rows, there)
    yield from _far_out(panel, rows, there)
    is_norm = (rows.call == NORM) & np.isfinite(rows.norm)
    if len(set(rows.rank[is_norm].tolist())) == len(there):
        past = cast("deque[dict[str, float]]", notes.setdefault("norms", deque(maxlen=_STEPS)))
        top = np.zeros(len(rows.names))
        np.maximum.at(top, rows.site[is_norm], rows.norm[is_norm])
        past.append(dict(zip(rows.names, top.tolist(), strict=True)))


def _rows(panel: Panel) -> _Rows | None:
    table = panel.where(port=LOCAL)
    if table.num_rows == 0:
        return None
    sites = table["site"].combine_chunks().dictionary_encode()
    column = {name: table[name].to_numpy() for name in ("rank", "sumsq", "n_nan", "n_posinf", "call", "order")}
    norm = np.sqrt(column["sumsq"])
    norm[column["n_posinf"] > 0] = np.inf
    norm[column["n_nan"] > 0] = np.nan
    return _Rows(
        rank=column["rank"], site=sites.indices.to_numpy(), names=sites.dictionary.to_pylist(), norm=norm,
        call=column["call"], order=column["order"],
    )  # fmt: skip


def _nonfinite(panel: Panel, rows: _Rows, there: Sequence[int]) -> Iterator[Finding]:
    notes = panel.history.notes[CODE]
    bad = ~np.isfinite(rows.norm) & (rows.call == NORM)
    ranks = sorted({r for r in rows.rank[bad].tolist() if not _is_scaling(panel, r)})
    before = cast("frozenset[int]", notes.get("bad", frozenset[int]()))
    notes["bad"] = frozenset(ranks)
    # What follows from NaN in the parameters is everywhere; so is a loss that is NaN for all.
    blamed = [r for r in ranks if r not in before and any(o in there and o not in ranks for o in _peers(panel, r))]
    if not blamed:
        return
    rank = blamed[0]
    mine = bad & (rows.rank == rank)
    names = _named(rows, mine)
    value = rows.norm[mine][int(np.argmax(rows.order[mine]))]
    finite = [r for r in _peers(panel, rank) if r in there and r not in ranks]
    why = [f"finite before the reduction on {_list_of(finite)}"]
    if len(names) > 1:
        why.append(f"{len(names):,} gradients were not finite on rank {rank}; this one is nearest to the loss")
    if len(blamed) > 1:
        why.append(f"the same on {_list_of(blamed[1:])}")
    what = "NaN" if math.isnan(value) else "inf, or more than 1e19,"  # its square is inf in float32
    title = f"{what} in the gradient of {names[-1]} on rank {rank}, before the reduction"
    yield _finding(panel, rank, names[-1], title, tuple(why), severity="error", actual=None)


def _far_out(panel: Panel, rows: _Rows, there: Sequence[int]) -> Iterator[Finding]:
    recent = _largest(rows, rows.call == RECENT)
    if not recent:
        return
    now: dict[int, dict[int, float]] = {}  # site -> rank -> norm
    finite = (rows.call == NORM) & np.isfinite(rows.norm)
    suspects = {site for _, site in recent}
    for index in np.flatnonzero(finite & np.isin(rows.site, list(suspects))).tolist():
        of_site = now.setdefault(int(rows.site[index]), {})
        rank = int(rows.rank[index])
        of_site[rank] = max(of_site.get(rank, 0.0), float(rows.norm[index]))
    found: list[tuple[float, int, int]] = []
    for (rank, site), was in recent.items():
        value = now.get(site, {}).get(rank, 0.0)
        others = [v for other, v in now[site].items() if other != rank] if site in now else []
        earlier = _earlier(panel, rows.names[site])
        if value > FAR_OUT * max(was, earlier, *others, 0.0) and len(there) > 1:
            found.append((value / was, rank, site))
    ranks = {rank for _, rank, _ in found}
    if len(ranks) != 1:
        return
    ratio, rank, site = max(found)
    name, value = rows.names[site], now[site][rank]
    n_all = len({s for s, r in zip(rows.site.tolist(), rows.rank.tolist(), strict=True) if r == rank})
    why = [f"{ratio:.3g} times the largest of the {REMEMBERED} steps before; the other ranks' is as before"]
    if len(found) > 1:
        why.append(f"{len(found):,} gradients of rank {rank} are far out, of {n_all:,} noted: its part of the batch?")
    yield _finding(panel, rank, name, f"the gradient of {name} on rank {rank} is far out before the reduction "
                   f"(norm {value:.3g})", tuple(why), severity="warning", actual=value)  # fmt: skip


def _largest(rows: _Rows, mask: Any) -> dict[tuple[int, int], float]:
    out: dict[tuple[int, int], float] = {}
    for index in np.flatnonzero(mask).tolist():
        key = int(rows.rank[index]), int(rows.site[index])
        out[key] = max(out.get(key, 0.0), float(rows.norm[index]))
    return out


def _earlier(panel: Panel, name: str) -> float:
    past = cast("deque[dict[str, float]]", panel.history.notes[CODE].get("norms", ()))
    return max((norms.get(name, 0.0) for norms in past), default=0.0)


def _named(rows: _Rows, mask: Any) -> list[str]:
    order = np.argsort(rows.order[mask], kind="stable")
    return list(dict.fromkeys(rows.names[i] for i in rows.site[mask][order].tolist()))


def _is_scaling(panel: Panel, rank: int) -> bool:
    record = panel.records.get(rank)
    return record is not None and record.loss_scale is not None and record.skipped


def _peers(panel: Panel, rank: int) -> Sequence[int]:
    """Return the ranks that have the same parameters and another part of the batch."""
    place = panel.places.get(rank)
    group = place.groups.get("dp") if place is not None else None
    return panel.ranks if group is None or len(group) == 1 else tuple(sorted(group))


def _list_of(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{' and others' if len(ranks) > 8 else ''}"


def _finding(
    panel: Panel, rank: int, name: str, title: str, why: tuple[str, ...], *, severity: Any, actual: float | None
) -> Finding:
    return Finding(
        code=CODE,
        kind="nonfinite" if severity == "error" else "spike",
        severity=severity,
        title=title,
        step=panel.step,
        rank=rank,
        coords=panel.coords(rank),
        phase="grad",
        site=name,
        port=LOCAL,
        param=name,
        actual=actual,
        why=why,
        confidence="likely",
        remedy=Remedy(action="find-device", targets=(f"rank {rank}",), text=_ADVICE),
    )
