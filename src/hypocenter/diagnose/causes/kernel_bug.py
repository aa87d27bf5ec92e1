"""A device's kernel gives a wrong result that other devices do not.

What it means
    On the accelerator the operation is not finite, each time; on the CPU, in the same format and on the same
    inputs, it is finite, and the float64 result would fit. The arithmetic is fine: the kernel, its compiler or
    its library is not.

How it is decided
    The second execution on the device gives the same bits, the CPU in the same format is finite at every bad
    element, and float64 is finite and within the limit of the format: proven.

What to do
    Report it with the standalone script of the bundle; use another kernel (another backend, deterministic or
    math-only mode) or another version of the library until it is mended. Whether it is the kernel or this device
    alone tells a neighbour: HC342 and HC343.

When it is wrong
    When the device adds in a narrower format by documented choice (reduced-precision accumulation): that is a
    setting.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import RANDOM, subject
from hypocenter.diagnose.rulings import executed_op, limit_of
from hypocenter.diagnose.verdicts import cause


@cause("kernel-bug", order=20)
def decide(evidence: Evidence) -> Verdict | None:
    """Not finite on the device, twice; finite on the CPU and in float64, within the limit."""
    origin, limit = evidence.origin, limit_of(evidence)
    if origin is None or evidence.leaf is not None or executed_op(origin) in RANDOM:
        return None
    repeats = evidence.again.ran and evidence.again.equal_bits and evidence.again.repeats
    fits = evidence.float64.ran and evidence.float64.finite and (limit is None or evidence.float64.absmax <= limit)
    if not (repeats and fits and evidence.cpu.ran and evidence.cpu.finite):
        return None
    return Verdict(
        cause="kernel-bug",
        confidence="proven",
        title=f"{subject(origin)} is wrong on this device",
        why=(
            f"on the device: {', '.join(evidence.chips) or 'not finite'}, the same bits each time",
            f"on the CPU in the same format: finite, |max| {short(evidence.cpu.absmax)}",
            f"in float64: {short(evidence.float64.absmax)}, which fits",
        ),
        limit=limit,
        actual=evidence.float64.absmax,
        advice="report it with the bundle's script, and use another kernel until it is mended",
    )
