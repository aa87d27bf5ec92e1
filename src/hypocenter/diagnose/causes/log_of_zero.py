"""A logarithm was taken at or below zero.

What it means
    log(0) is -inf and the log of a negative number is NaN, in every format. Usual sources: a probability that
    underflowed or was rounded to exactly 0 or 1, and a clamp(eps, 1 - eps) whose eps is below the resolution of
    the format, so that 1 - eps is 1.

How it is decided
    The blamed operation is a logarithm, its input holds values at or below 0 (-1 for log1p, 0 or 1 for logit),
    and float64 is not finite there either: proven. Without re-execution: likely.

What to do
    Compute in log space from the start: log_softmax, cross_entropy, binary_cross_entropy_with_logits,
    logsumexp. Otherwise clamp with an eps of at least finfo(dtype).eps.

When it is wrong
    A log(0) that `where` discards in forward *and* in backward is harmless and is not reported, because no bad
    value descends from it.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import LOG, base, subject
from hypocenter.diagnose.rulings import fact, floating, has_zero, singular
from hypocenter.diagnose.verdicts import cause


@cause("log-of-zero", order=140)
def decide(evidence: Evidence) -> Verdict | None:
    """A logarithm outside its domain."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None or origin.phase == "backward" or base(origin.op) not in LOG:
        return None
    found = _outside(evidence, origin)
    if found is None:
        return None
    where, line = found
    return Verdict(
        cause="log-of-zero",
        confidence=confidence,
        title=f"{subject(origin)} of {where}",
        why=(line, *_clamped(evidence), *why.not_finite_in_float64(evidence)),
        limit=-1.0 if base(origin.op) == "log1p" else 0.0,
        actual=floating(origin)[0].summary.min if floating(origin) else None,
        advice="use log_softmax or a loss on logits, or clamp with an eps that the format can resolve",
    )


def _outside(evidence: Evidence, origin: OpFacts) -> tuple[str, str] | None:
    name, operands = base(origin.op), floating(origin)
    operand = operands[-1] if name in ("xlogy", "special_xlogy") and operands else (operands[0] if operands else None)
    low = operand.summary.min if operand is not None else None
    if name == "log1p":
        return ("-1 or less", f"the input goes down to {short(low)}") if low is not None and low <= -1 else None
    if name in ("logit", "binary_cross_entropy"):
        high = operand.summary.max if operand is not None else None
        at_end = (low is not None and low <= 0) or (high is not None and high >= 1)
        return ("0 or 1", f"the input spans {short(low or 0.0)} to {short(high or 0.0)}") if at_end else None
    n_negative = int(fact(evidence, "n_negative_inputs") or 0)
    if n_negative or (low is not None and low < 0):
        count = f" at {n_negative:,} elements" if n_negative else f", down to {short(low or 0.0)}"
        return "a negative number", f"the input is negative{count}"
    n_zero = int(fact(evidence, "n_zero_inputs") or (operand.summary.n_zero if operand is not None else 0))
    if n_zero or has_zero(operand) or low == 0:
        total = f" of {operand.summary.n:,}" if operand is not None and operand.summary.n else ""
        return "exactly 0", f"the input is exactly 0 at {n_zero:,}{total} elements"
    return None


def _clamped(evidence: Evidence) -> tuple[str, ...]:
    bound, rounded = fact(evidence, "clamp_bound"), fact(evidence, "clamp_bound_rounded")
    if bound is None:
        return ()
    dtype = str(evidence.facts.get("clamp_dtype", "this format"))
    eps = fact(evidence, "clamp_eps")
    rounds_to = rounded if rounded is not None else bound
    if rounds_to not in (0.0, 1.0) or (bound == rounds_to and bound not in (0.0, 1.0)):
        return ()
    resolution = f", whose eps is {eps:.3g}" if eps is not None else ""
    return (f"the clamp before it does nothing: its bound {bound!r} is {rounds_to:g} in {dtype}{resolution}",)
