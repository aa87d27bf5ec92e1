"""A function was asked for where it is not defined.

What it means
    The square root of a negative number, a logarithm below 0, acos beyond ±1, a negative number to a power that is
    not whole: no real number is the answer, and in every format it is NaN. Usual sources: a variance or distance
    computed as a difference, a cosine that rounding has brought to 1.0000001, a parameter that training has driven
    below 0.

How it is decided
    The blamed operation is one of the functions whose domain is known, its operand holds numbers outside that domain,
    the result is not finite at exactly these elements, and float64 is not finite there either: proven. Without
    re-execution: likely.

What to do
    Find out why the operand left the domain. Clamp it to the domain, or write the operand so that it cannot leave it:
    softplus or exp of a free parameter, sum of squares instead of a difference, abs before a power.

When it is wrong
    When the result there is thrown away by a mask: that is the masked-gradient-trap, which is preferred. An infinity
    at the end of a domain is another cause: log-of-zero, division-by-zero.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, TensorFacts, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import base, called, subject
from hypocenter.diagnose.rulings import executed_op, fact, singular
from hypocenter.diagnose.verdicts import cause
from hypocenter.domains import DOMAINS, Domain
from hypocenter.nouns import Confidence


@cause("out-of-domain", order=115)
def decide(evidence: Evidence) -> Verdict | None:
    """A function of known domain, with an operand outside it."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None:
        return None
    domain = DOMAINS.get(executed_op(origin))
    if domain is None:
        return None
    operand = _operand(origin, domain)
    line, worst = _measured(evidence, operand, domain) or _seen(operand, domain)
    if not line:
        return None
    holder = _holder(operand)
    return Verdict(
        cause="out-of-domain",
        confidence=_supported(evidence, confidence),
        title=f"{_function(origin)} of {domain.outside}{f' in {holder}' if holder else ''}",
        why=(line, *why.not_finite_in_float64(evidence)),
        limit=None if worst is None else domain.end_near(worst),
        actual=worst,
        advice="keep the operand in the domain: clamp it, or compute it in a way that cannot leave it",
    )


def _function(origin: OpFacts) -> str:
    """Name the function: "the square root"; in backward with what it was needed for."""
    if origin.phase != "backward":
        return subject(origin)
    return f"{subject(origin)} needs {called(executed_op(origin), origin.module)}"


def _operand(origin: OpFacts, domain: Domain) -> TensorFacts | None:
    """Return the operand that has to be in the domain; None: it is a number, or was not captured."""
    tensors = origin.inputs
    if base(origin.op) == "pow" and "self" in origin.scalars:
        return None
    return tensors[domain.of] if domain.of < len(tensors) else None


def _measured(evidence: Evidence, operand: TensorFacts | None, domain: Domain) -> tuple[str, float | None] | None:
    """Return what the replay counted in the captured operands: a line, and the worst number."""
    n, worst = fact(evidence, "n_outside"), fact(evidence, "worst_outside")
    if not n or worst is None:
        return None
    total = f" of {operand.summary.n:,}" if operand is not None and operand.summary.n >= n else ""
    at = evidence.facts.get("at_outside")
    where = f" at {at}" if at not in (None, "[]") else ""
    line = f"{_named(operand)} is {domain.outside} at {n:,.0f}{total} elements, at worst {_exact(worst, domain)}{where}"
    return line, worst


def _exact(worst: float, domain: Domain) -> str:
    """Write a number with as many digits as it takes to see that it lies outside."""
    text = short(worst)
    return repr(worst) if domain.has(float(text), float(text)) and not domain.has(worst, worst) else text


def _seen(operand: TensorFacts | None, domain: Domain) -> tuple[str, float | None]:
    """Return what the extremes of an operand tell that was not captured: a line ("": nothing), the worst number."""
    low, high = (operand.summary.min, operand.summary.max) if operand is not None else (None, None)
    if operand is None or domain.has(low, high):
        return "", None
    worst = low if low is not None and low < domain.low else high
    return f"{_named(operand)} goes {'down' if worst == low else 'up'} to {_exact(worst or 0.0, domain)}", worst


def _named(operand: TensorFacts | None) -> str:
    holder = _holder(operand)
    if holder:
        return holder
    made = f" ({operand.origin})" if operand is not None and operand.origin else ""
    return f"the operand{made}"


def _holder(operand: TensorFacts | None) -> str:
    """Name the parameter, buffer or batch tensor that the operand is: "parameter gain"; "" for another."""
    kind, _, name = (operand.origin if operand is not None else "").partition(" ")
    if kind not in ("param", "buffer", "batch") or not name:
        return ""
    return f"batch{name}" if kind == "batch" else f"{'parameter' if kind == 'param' else kind} {name}"


def _supported(evidence: Evidence, confidence: Confidence) -> Confidence:
    """Return the confidence; proven only if exactly the elements outside are bad, in float64 too."""
    n, is_all = fact(evidence, "n_outside"), fact(evidence, "is_all_outside")
    return confidence if n and is_all and evidence.float64.n_nonfinite >= n else "likely"
