"""Something was divided by exactly zero.

What it means
    The denominator of a division, reciprocal or rsqrt is exactly 0 at the bad elements (or 0 is raised to a
    negative power). x / 0 is infinite and 0 / 0 is NaN in every format. In the backward of eigh and svd the
    denominator is the gap between two eigenvalues or singular values, which is 0 when they repeat.

How it is decided
    The float64 execution is not finite either, and the denominator holds exact zeros: proven. Without
    re-execution: likely.

What to do
    Find out why the denominator is 0 (an empty mask, a constant channel, a dead unit). Add eps inside, clamp
    it, or use max(count, 1). For eigh and svd add a small, distinct jitter to the diagonal.

When it is wrong
    When the denominator is 0 only because a small value underflowed in float16: then the format is to blame,
    and running the lines before it in float32 cures it too.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, TensorFacts, Verdict
from hypocenter.diagnose.operators import DIVISION, subject
from hypocenter.diagnose.rulings import differentiated_op, executed_op, fact, floating, has_zero, scalar, singular
from hypocenter.diagnose.verdicts import cause

_SPECTRUM = {
    "linalg_eigh": "eigenvalues", "linalg_eig": "eigenvalues", "linalg_eigvalsh": "eigenvalues",
    "linalg_svd": "singular values", "svd": "singular values",
}  # fmt: skip
_OWN_CAUSE = frozenset({"sqrt", "pow", "norm", "linalg_vector_norm", "cdist", "acos", "asin", "acosh", "log", "logit"})


@cause("division-by-zero", order=150)
def decide(evidence: Evidence) -> Verdict | None:
    """Not finite in float64 either, with an exact zero below the line."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None:
        return None
    if origin.phase == "backward" and differentiated_op(origin) in _SPECTRUM:
        return _verdict(evidence, origin, confidence, _degenerate(evidence, origin))
    if origin.phase == "backward" and differentiated_op(origin) in _OWN_CAUSE:
        return None
    line = _zero_line(evidence, origin)
    return None if line is None else _verdict(evidence, origin, confidence, line)


def _verdict(evidence: Evidence, origin: OpFacts, confidence: str, line: str) -> Verdict:
    spectrum = _SPECTRUM.get(differentiated_op(origin)) if origin.phase == "backward" else None
    title = f"{subject(origin)} with repeated {spectrum}" if spectrum else f"{subject(origin)} has a denominator of 0"
    return Verdict(
        cause="division-by-zero",
        confidence=confidence,  # type: ignore[arg-type]
        title=title,
        why=(line, *why.inputs(evidence), *why.not_finite_in_float64(evidence)),
        limit=0.0,
        actual=0.0,
        advice="add a small distinct jitter to the diagonal" if spectrum else "keep the denominator away from 0",
    )


def _degenerate(evidence: Evidence, origin: OpFacts) -> str:
    values = _SPECTRUM[differentiated_op(origin)]
    gap = fact(evidence, "gap")
    measured = f"; the smallest gap is {gap:.3g}" if gap is not None else ""
    return f"its gradient contains 1 / (difference of two {values}), and two of them are equal{measured}"


def _zero_line(evidence: Evidence, origin: OpFacts) -> str | None:
    op, operands = executed_op(origin), floating(origin)
    exponent = scalar(origin, "exponent")
    if op == "pow" and origin.phase != "backward":
        if exponent is not None and exponent < 0 and operands and has_zero(operands[0]):
            return f"0 is raised to the power {exponent:g}"
        return None
    if op not in DIVISION:
        return None
    below = _denominator(op, origin)
    measured = fact(evidence, "n_zero_denominators")
    if scalar(origin, "other") == 0:
        return "the denominator is the number 0"
    if not measured and not has_zero(below):
        return None
    n = int(measured) if measured else (below.summary.n_zero if below is not None else 0)
    name = below.name if below is not None else "the denominator"
    made = f", from {below.origin}" if below is not None and below.origin else ""
    numerator = operands[0] if op not in ("reciprocal", "rsqrt") and len(operands) > 1 else None
    both = numerator is not None and numerator.summary.n > 0 and numerator.summary.absmax == 0
    return f"{name} is exactly 0 at {n:,} of {below.summary.n if below else n:,} elements{made}" + (
        ": 0 / 0" if both else ""
    )


def _denominator(op: str, origin: OpFacts) -> TensorFacts | None:
    operands = floating(origin) or origin.inputs
    if op in ("reciprocal", "rsqrt"):
        return operands[0] if operands else None
    named = next((t for t in origin.inputs if t.name in ("other", "tensor2")), None)
    if named is None and "other" in origin.scalars:
        return None
    return named or (origin.inputs[-1] if len(origin.inputs) > 1 else None)
