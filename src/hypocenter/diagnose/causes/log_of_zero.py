"""A logarithm was taken of exactly zero.

What it means
    log(0) is -inf in every format. Usual sources: a probability that underflowed or was rounded to exactly 0 or 1,
    and a clamp(eps, 1 - eps) whose eps is below the resolution of the format, so that 1 - eps is 1.

How it is decided
    The blamed operation is a logarithm, its input holds exact zeros (-1 for log1p, 0 or 1 for logit) and nothing
    outside its domain, and float64 is not finite there either: proven. Without re-execution: likely. Or it is the
    gradient of a logarithm, which divides by an exact zero: what became of the -inf in forward does not matter.

What to do
    Compute in log space from the start: log_softmax, cross_entropy, binary_cross_entropy_with_logits,
    logsumexp. Otherwise clamp with an eps of at least finfo(dtype).eps.

When it is wrong
    A log(0) that `where` discards in forward *and* in backward is harmless and is not reported, because no bad
    value descends from it. The logarithm of a negative number is another cause: out-of-domain.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import DIVISION, LOG, base, subject
from hypocenter.diagnose.rulings import differentiated_op, executed_op, fact, floating, has_zero, singular
from hypocenter.diagnose.verdicts import cause
from hypocenter.domains import DOMAINS
from hypocenter.nouns import Confidence

_ADVICE = "use log_softmax or a loss on logits, or clamp with an eps that the format can resolve"


@cause("log-of-zero", order=140)
def decide(evidence: Evidence) -> Verdict | None:
    """A logarithm at its pole."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None:
        return None
    is_itself = base(origin.op) == executed_op(origin)  # also in backward, in a Function of the user
    found = _pole(evidence, origin) if is_itself and base(origin.op) in LOG else None
    if found is None:
        return _gradient(evidence, origin, confidence) if origin.phase == "backward" else None
    where, line = found
    return Verdict(
        cause="log-of-zero",
        confidence=confidence,
        title=f"{subject(origin)} of {where}",
        why=(line, *_clamped(evidence), *why.not_finite_in_float64(evidence)),
        limit=-1.0 if base(origin.op) == "log1p" else 0.0,
        actual=floating(origin)[0].summary.min if floating(origin) else None,
        advice=_ADVICE,
    )


def _gradient(evidence: Evidence, origin: OpFacts, confidence: Confidence) -> Verdict | None:
    """Return the verdict for 1 / x at 0 in backward: forward had hidden the logarithm, by relu for example."""
    if differentiated_op(origin) not in LOG or executed_op(origin) not in DIVISION:
        return None
    if not fact(evidence, "n_zero_denominators"):
        return None
    upstream = ("the gradient that came in is exactly 0 there: 0 / 0 is NaN",) if evidence.upstream_grad_zero else ()
    return Verdict(
        cause="log-of-zero",
        confidence=confidence,
        title=f"{subject(origin)} at exactly 0",
        why=(
            "the logarithm of 0 is -inf, which something hid in forward; its derivative divides by 0",
            *upstream,
            *why.inputs(evidence),
            *why.not_finite_in_float64(evidence),
        ),
        limit=0.0,
        actual=0.0,
        advice=_ADVICE,
    )


def _pole(evidence: Evidence, origin: OpFacts) -> tuple[str, str] | None:
    """Return what the logarithm was taken of, and the line that shows it; None: not at its pole, or beyond it."""
    name, operands = base(origin.op), floating(origin)
    operand = operands[-1] if name in ("xlogy", "special_xlogy") and operands else (operands[0] if operands else None)
    low, high = (operand.summary.min, operand.summary.max) if operand is not None else (None, None)
    domain = DOMAINS.get(name)
    if fact(evidence, "n_outside") or (domain is not None and not domain.has(low, high)):
        return None
    if name == "log1p":
        return ("exactly -1", "the input goes down to -1") if low == -1 else None
    if name in ("logit", "binary_cross_entropy"):
        at_end = low == 0 or high == 1
        return ("0 or 1", f"the input spans {short(low or 0.0)} to {short(high or 0.0)}") if at_end else None
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
