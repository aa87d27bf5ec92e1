"""Every rank's share was finite, and what the collective added up is not.

What it means
    An all-reduce or reduce-scatter adds before anybody divides, in the format of the data. In float16 two shares of
    40,000 make infinity. No rank has done anything wrong on its own: the sum does not fit.

How it is decided
    On the steps of `collectives`: all inputs of a sum or mean are finite on every rank, the output is not, and the
    largest magnitudes of the ranks together come near the largest number of the format. Steps that a loss scaler has
    skipped do not count: finding such sums is how it works. (When they do not come near it, the result was damaged:
    HC311.)

What to do
    Divide before the reduction, or reduce in float32 or bfloat16 (`MixedPrecisionPolicy(reduce_dtype=torch.float32)` of
    FSDP2, `communication_data_type` of DeepSpeed); or lower the loss scale.

When it is wrong
    A sum that is allowed to overflow, because its infinities are looked for and dropped afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypocenter.detect.collective_calls import Reduction, Value, collectives_of, reductions
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.formats import FORMATS
from hypocenter.nouns import Finding, Remedy

CODE = "HC312"
_ADVICE = "divide each rank's share before the reduction, or reduce in float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overflow:
    reduction: Reduction
    result: Value
    limit: float


@group_rule("HC312", "nonfinite", severity="error", reads=("comm",), asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """One finding a step: the sum that is farthest above its format."""
    found = [o for c in collectives_of(panel) for r in reductions(c) if (o := _overflowed(r)) is not None]
    if not found or any(r.loss_scale is not None and r.skipped for r in panel.records.values()):
        return
    worst = max(found, key=lambda o: sum(v.absmax for v in o.reduction.summands) / o.limit)
    shares = sorted(worst.reduction.summands, key=lambda v: -v.absmax)
    largest = shares[0]
    told = ", ".join(f"rank {v.rank} {v.absmax:.5g}" for v in shares[:4])
    yield Finding(
        code=CODE,
        kind="nonfinite",
        severity="error",
        title=f"{worst.reduction.of.name}: finite shares, a sum that overflowed {worst.result.dtype}",
        step=panel.step,
        rank=largest.rank,
        coords=panel.coords(largest.rank),
        phase="comm",
        site=worst.result.site,
        port=worst.result.port,
        op=worst.reduction.of.name.partition(" ")[0],
        cause="accumulation-overflow",
        limit=worst.limit,
        actual=sum(v.absmax for v in shares),
        why=(f"largest magnitudes before it: {told}", f"together they may come to more than {worst.limit:.5g}"),
        confidence="likely",
        remedy=Remedy(action="prescale", targets=(worst.result.site,), text=_ADVICE),
        count=len(found),
    )


def _overflowed(reduction: Reduction) -> _Overflow | None:
    bad = next((v for v in reduction.results if v.n_bad), None)
    if bad is None or bad.dtype not in FORMATS or any(v.n_bad for v in reduction.summands):
        return None
    limit = FORMATS[bad.dtype].max
    is_near = sum(v.absmax for v in reduction.summands) * 2 >= limit
    return _Overflow(reduction=reduction, result=bad, limit=limit) if is_near else None
