"""Two infinities cancelled.

What it means
    inf - inf is NaN in every format. The infinities were meant (constants of the program, such as masks), but
    an operation brought two of them together: two masks subtracted, +inf and -inf in one sum.

How it is decided
    The blamed operation is an addition, subtraction or sum; its inputs hold infinities that are constants, of
    signs that cancel; its output holds NaN; float64 is not finite either: proven. Without re-execution: likely.

What to do
    Combine masks as booleans before turning them into numbers, or use the format's lowest finite value instead
    of -inf.

When it is wrong
    An infinity that an operation *made* is blamed on that operation, and the inf - inf after it is only its
    consequence.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.operators import SUM, base, subject
from hypocenter.diagnose.rulings import bad_output, floating, singular
from hypocenter.diagnose.verdicts import cause

_SUMMING = frozenset({"sum", "cumsum", "mean"})


@cause("inf-minus-inf", order=110)
def decide(evidence: Evidence) -> Verdict | None:
    """Constants that cancel: inf - inf."""
    origin, confidence, output = evidence.origin, singular(evidence), bad_output(evidence)
    if origin is None or confidence is None or output is None or not output.summary.n_nan or not _cancels(origin):
        return None
    return Verdict(
        cause="inf-minus-inf",
        confidence=confidence,
        title=f"{subject(origin)} cancelled two infinities",
        why=(
            *(
                f"{t.name} holds +inf ×{t.summary.n_posinf:,} and -inf ×{t.summary.n_neginf:,}"
                for t in floating(origin)
                if t.summary.n_posinf + t.summary.n_neginf
            ),
            *why.not_finite_in_float64(evidence),
        ),
        advice="combine the masks as booleans, or use a large finite number instead of infinity",
    )


def _cancels(origin: OpFacts) -> bool:
    name, operands = base(origin.op), floating(origin)
    if name in _SUMMING and operands:
        return operands[0].summary.n_posinf > 0 and operands[0].summary.n_neginf > 0
    if name not in SUM or len(operands) < 2:
        return False
    a, b = operands[0].summary, operands[1].summary
    if name == "add":
        return bool((a.n_posinf and b.n_neginf) or (a.n_neginf and b.n_posinf))
    return bool((a.n_posinf and b.n_posinf) or (a.n_neginf and b.n_neginf))
