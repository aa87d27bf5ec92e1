"""A collective gave back something else than what went in.

What it means
    The sum of what the ranks put into an all-reduce or reduce-scatter is not what they were given, or what was sent is
    not what arrived. Nothing fails and no number need be strange: training goes on with a wrong gradient. A result that
    is bit for bit the rank's own input means that its reduction was dropped; different results on ranks that must get
    the same mean that one of them was damaged on its way.

How it is decided
    On the steps of `collectives` the observer sketches what goes in and what comes out. Sketches are linear: those of
    the summands, added, are the sketch of their sum, whoever adds. It fires when the result is farther from it than
    rounding in the data's own format explains (8 times the expected error of a sum of n terms, in any order). What is
    only moved (all-gather, all-to-all, broadcast, send and receive) must arrive with equal digests. DDP's own reduction
    is checked in the same way, from local and averaged gradients of each parameter.

What to do
    See which link or library the named ranks share. Repeat the step; take the device out when it comes again. A result
    that is its own input often is a bug: a handle that nobody waited for, a tensor that was replaced after the call.

When it is wrong
    A program that writes into a tensor while its asynchronous reduction is still under way. Compressed or quantised
    communication below Python is not exact; a communication hook of DDP is left out, and so are products and extremes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypocenter.detect.addition import Difference, Summand, compare
from hypocenter.detect.collective_calls import (
    Collective,
    Copy,
    Reduction,
    Value,
    collectives_of,
    copies,
    reductions,
)
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.local_rows import LOCAL, NORM, REDUCED
from hypocenter.detect.panel import Panel
from hypocenter.formats import FORMATS
from hypocenter.nouns import Finding, Remedy

CODE = "HC311"
_ADVICE = "repeat the step on these ranks with another transport (NCCL_P2P_DISABLE, NCCL_ALGO, HCCL_ALGO); if it comes \
again, replace the device or link; check that every handle is waited for"
_IN_ORDER = (
    "give it tensors that are contiguous, also as its result: torch.empty(shape), for empty_like of a tensor that \
was turned keeps its strides, and gloo copies memory as it lies"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong:
    """A value that is not as it must be."""

    value: Value
    what: str
    name: str
    difference: Difference | None = None
    is_in_other_order: bool = False  # it looks like the same values


@group_rule("HC311", "comm", severity="error", reads=("comm", "local"), asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report one finding a step for each group and operation, and one for DDP's own reduction."""
    found: dict[str, list[_Wrong]] = defaultdict(list)
    for collective in collectives_of(panel):
        for reduction in reductions(collective):
            found[collective.name] += _wrong(reduction)
        for copy in copies(collective):
            if (wrong := _changed(copy)) is not None:
                found[collective.name].append(wrong)
    for reduction in _of_ddp(panel):
        found["DDP's reduction"] += _wrong(reduction)
    for wrongs in found.values():
        if wrongs:
            yield _finding(panel, wrongs)


def _wrong(reduction: Reduction) -> list[_Wrong]:
    summands, results = reduction.summands, reduction.results
    if any(v.n_bad or not v.sketch for v in summands):
        return []
    given = [Summand(sketch=v.sketch, norm=v.norm) for v in summands]
    own = {v.rank: v for v in summands}
    found: list[_Wrong] = []
    for result in results:
        if result.n_bad or not result.sketch or not all(map(math.isfinite, result.sketch)):
            limit = FORMATS[result.dtype].max if result.dtype in FORMATS else math.inf
            if sum(v.absmax for v in summands) * 2 < limit:
                found.append(_Wrong(value=result, what="not finite", name=reduction.of.name))
            continue  # else: the sum overflowed (HC312)
        difference = compare(given, result.sketch, dtype=result.dtype, factor=reduction.factor)
        if difference.is_wrong:
            mine = own.get(result.rank)
            alone = mine and Summand(sketch=mine.sketch, norm=mine.norm)
            is_dropped = (
                alone and not compare([alone], result.sketch, dtype=result.dtype, factor=reduction.factor).is_wrong
            )
            what = "its own share alone: the reduction was dropped" if is_dropped else "a wrong sum"
            found.append(_Wrong(value=result, what=what, name=reduction.of.name, difference=difference))
    if not found and reduction.of.op == "all_reduce" and len(results) == len(reduction.of.ranks) > 2:
        found += _odd_one(reduction)
    return found


def _odd_one(reduction: Reduction) -> list[_Wrong]:
    """Return the one rank with other bits: too small for the sketch, but no order of addition explains it."""
    digests: dict[int | None, list[Value]] = defaultdict(list)
    for result in reduction.results:
        digests[result.digest].append(result)
    groups = sorted(digests.values(), key=len)
    if len(groups) == 2 and len(groups[0]) == 1 and all(v.digest is not None for v in reduction.results):
        return [_Wrong(value=groups[0][0], what="other bits than all other ranks", name=reduction.of.name)]
    return []


def _changed(copy: Copy) -> _Wrong | None:
    if copy.sent.digest is None or copy.arrived.digest is None or copy.sent.digest == copy.arrived.digest:
        return None
    sent, arrived = copy.sent, copy.arrived
    is_as_large = sent.absmax == arrived.absmax > 0 and math.isclose(sent.norm, arrived.norm, rel_tol=1e-5)
    what = f"something else than rank {sent.rank} has sent"
    return _Wrong(value=arrived, what=what, name=copy.of.name, is_in_other_order=is_as_large and sent.n > 1)


def _of_ddp(panel: Panel) -> Iterator[Reduction]:
    """Yield each parameter's local gradients, with what DDP made of them."""
    reduced = panel.where(port=REDUCED)
    if reduced.num_rows == 0:
        return
    groups = panel.groups("dp") or [tuple(panel.ranks)]
    before, after = _by_parameter(panel, LOCAL), _by_parameter(panel, REDUCED)
    for key, results in after.items():
        for ranks in groups:
            summands = [before[key][r] for r in ranks if r in before.get(key, {})]
            given = [results[r] for r in ranks if r in results]
            if len(summands) == len(given) == len(ranks) and len({(v.n, v.dtype) for v in (*summands, *given)}) == 1:
                of = Collective(op="all_reduce", reduce="avg", axis=key[0], ranks=ranks, peer=None, call=0)
                yield Reduction(of=of, summands=summands, results=given, factor=1 / len(ranks))


def _by_parameter(panel: Panel, port: str) -> dict[tuple[str, int], dict[int, Value]]:
    out: dict[tuple[str, int], dict[int, Value]] = defaultdict(dict)
    for rank, reading in panel.readings(panel.where(port=port)):
        if reading.call == NORM:
            s = reading.summary
            out[reading.site, reading.microbatch][rank] = Value(
                rank=rank, port=port, dtype=reading.dtype, n=s.n, n_bad=s.n_nonfinite, norm=math.sqrt(s.sumsq),
                absmax=math.sqrt(s.sumsq), digest=reading.digest, sketch=s.sketch or (), site=reading.site,
            )  # fmt: skip
    return out


def _finding(panel: Panel, wrongs: Sequence[_Wrong]) -> Finding:
    worst = max(wrongs, key=lambda w: w.difference.actual / (w.difference.allowed or 1.0) if w.difference else math.inf)
    value, is_ddp = worst.value, worst.value.port == REDUCED
    ranks = sorted({w.value.rank for w in wrongs})
    who = f"rank {value.rank} was" if len(ranks) == 1 else f"ranks {_listed(ranks)} were"
    what = f"{who} given {worst.what}"
    why: list[str] = []
    if worst.difference is not None:
        d = worst.difference
        why.append(f"it is {d.actual:.3g} off (norm of the difference); rounding explains {d.allowed:.2g}")
    if worst.is_in_other_order:
        why.append("norm and largest magnitude are those of what was sent: the same values, in another order")
    if len(wrongs) > 1:
        why.append(f"{len(wrongs):,} results of this kind are wrong in this step")
    return Finding(
        code=CODE,
        kind="comm",
        severity="error",
        title=f"{'the averaging of gradients' if is_ddp else worst.name}: {what}",
        step=panel.step,
        rank=value.rank,
        coords=panel.coords(value.rank),
        phase="grad" if is_ddp else "comm",
        site=value.site,
        port=value.port,
        param=value.site if is_ddp else None,
        op=None if is_ddp else worst.name.partition(" ")[0],
        cause="collective-fault",
        limit=worst.difference.allowed if worst.difference else None,
        actual=worst.difference.actual if worst.difference else None,
        why=tuple(why),
        confidence="proven" if worst.difference or "sent" in worst.what else "likely",
        remedy=Remedy(
            action="check-collective",
            targets=tuple(f"rank {r}" for r in ranks),
            text=_IN_ORDER if worst.is_in_other_order else _ADVICE,
        ),
        count=len(wrongs),
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
