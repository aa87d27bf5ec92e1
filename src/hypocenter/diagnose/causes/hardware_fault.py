"""The same operation on the same inputs gave another result.

What it means
    Executed again on the same device with the same captured inputs, the operation is finite where it was not.
    Arithmetic is deterministic: what differs is the hardware (a bit flip in memory, a failing unit) or a race
    in the kernel.

How it is decided
    Executed again on the same device, at least 5 times and up to 59, it gives one and the same result each time: not
    the bits of the run, and finite where that was not. After 59 times proven (what comes out otherwise once in twenty
    times would have shown), after fewer likely; likely too if it is still not finite but at fewer elements. Operations
    that draw random numbers, those that may add in any order, those that do not give the same bits each time, and
    those that not all inputs were kept of, are not judged.

What to do
    Note the rank and device, drain the host and run its vendor's diagnostics; look at ECC counters. If several
    devices do it, suspect the kernel or a missing synchronisation instead. `--sdc-check every=1000` does micro-batches
    again on a schedule, here and on a neighbour's device (HC341 to HC343).

When it is wrong
    When another stream wrote to the inputs while the operation ran, so that what was captured is not what was
    read.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import RANDOM, UNORDERED, subject
from hypocenter.diagnose.rulings import bad_output, executed_op
from hypocenter.diagnose.verdicts import cause
from hypocenter.repetition import ENOUGH, LEAST


@cause("hardware-fault", order=10)
def decide(evidence: Evidence) -> Verdict | None:
    """Other bits on the second execution, and another answer."""
    origin, again, output = evidence.origin, evidence.again, bad_output(evidence)
    if origin is None or evidence.leaf is not None or not again.ran or again.equal_bits:
        return None
    if again.n_runs < LEAST or not again.repeats:
        return None
    if executed_op(origin) in RANDOM | UNORDERED:
        return None
    differs = again.finite or (output is not None and 0 < again.n_nonfinite < _n_bad(evidence))
    if not differs:
        return None
    was = ", ".join(evidence.chips) or "not finite"
    now = "finite everywhere it was not" if again.finite else f"not finite at {again.n_nonfinite:,} elements"
    times = f"{again.n_runs} times on the same device and inputs, with the same bits each time,"
    return Verdict(
        cause="hardware-fault",
        confidence="proven" if again.finite and again.n_runs >= ENOUGH else "likely",
        title=f"{subject(origin)} gave another result the second time",
        why=(f"in the run it was {was}; executed again {times} it is {now}",),
        advice="drain this host and run the vendor's diagnostics; look at the device's ECC counters",
    )


def _n_bad(evidence: Evidence) -> int:
    output = bad_output(evidence)
    if output is None:
        return 0
    return output.summary.n_nan or output.summary.n_nonfinite
