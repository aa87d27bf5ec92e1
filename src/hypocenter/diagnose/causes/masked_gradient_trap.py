"""A value was masked away in forward, and its gradient was not.

What it means
    `where(ok, f(x), 0)` selects in forward, but backward still computes the derivative of f where it was not
    selected and multiplies it by a gradient of 0: 0 × inf = NaN. The loss is finite; the gradient is not.

How it is decided
    The loss is finite, and the bad gradient descends from a value that was already not finite in forward and
    was hidden there; or the gradient that came into the blamed operation is exactly 0 at every bad element and
    its line selects with where or a mask. The replay shows it: proven.

What to do
    Make the input safe before the operation (double where): f(where(ok, x, 1)), then select. For losses: index
    with the mask before computing the loss, not after.

When it is wrong
    When the incoming gradient is 0 for another reason than a mask (a squared norm at 0); then
    sqrt-gradient-at-zero or pow-gradient is the better name, and is used unless a mask is seen.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import masked_by, overflow, supported
from hypocenter.diagnose.verdicts import cause


@cause("masked-gradient-trap", order=60)
def decide(evidence: Evidence) -> Verdict | None:
    """Finite loss, and a gradient through what forward had hidden."""
    if not evidence.forward_finite or evidence.leaf_kind in ("param", "buffer"):
        return None
    if evidence.origin is None and evidence.leaf is None:
        return None
    mask = masked_by(evidence)
    hidden = evidence.killed_in_forward and (bool(mask) or overflow(evidence) is None)
    if not hidden and not (evidence.upstream_grad_zero and mask):
        return None
    return Verdict(
        cause="masked-gradient-trap",
        confidence=supported(evidence),
        title=_title(evidence, mask),
        why=(*_hidden(evidence), *_upstream(evidence), *_rerun(evidence)),
        advice="make the input safe before the operation, and select afterwards",
    )


def _title(evidence: Evidence, mask: str) -> str:
    by = mask or "a mask"
    if evidence.leaf is not None:
        return f"a bad value in {why.leaf_name(evidence)} was masked in forward only"
    assert evidence.origin is not None
    return f"{subject(evidence.origin)}, masked by {by} in forward only"


def _hidden(evidence: Evidence) -> tuple[str, ...]:
    if evidence.leaf is not None:
        first = f", first at {list(evidence.indices[0])}" if evidence.indices else ""
        chips = ", ".join(evidence.chips) or "non-finite values"
        return (
            f"{why.leaf_name(evidence)} came with {chips}{first}; the loss is finite because they were selected away",
        )
    if evidence.killed_in_forward and evidence.origin is not None:
        return (
            f"{why.place(evidence.origin)} was not finite in forward; the loss is finite because it was selected away",
        )
    return ("forward is finite; the derivative of what was not selected is not",)


def _upstream(evidence: Evidence) -> tuple[str, ...]:
    if evidence.upstream_grad_zero:
        return ("the gradient that came in is exactly 0 at every bad element: 0 × inf is NaN",)
    return ("backward multiplies it by a gradient of 0: 0 × inf and 0 × NaN are NaN",)


def _rerun(evidence: Evidence) -> tuple[str, ...]:
    return () if evidence.leaf is not None else why.not_finite_in_float64(evidence)
