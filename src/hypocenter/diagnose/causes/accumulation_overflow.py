"""A sum over many elements outgrew its number format.

What it means
    Each element fits, their sum (mean, running sum, variance, norm) does not: the result grows with the length.
    It breaks on the first long sequence or large batch, and often hides, because 1 / inf = 0.

How it is decided
    The blamed operation is a reduction (or an einsum that contracts positive terms) and its result in float64
    is finite and above the limit: proven. If the float64 result fits, yet the same operation in the same format
    is not finite twice, a partial sum must have overflowed: likely. When all elements have one sign, the
    critical length is limit / mean|x|. Also when every micro-batch has finite gradients and only their
    accumulated sum is not; and when every rank's own gradient is finite and, added up over the ranks where
    the reduced one is not, passes the limit (proven element by element; likely when clipping has hidden
    which elements they were).

What to do
    Accumulate in float32 (`dtype=torch.float32` in sum and mean), divide before adding, or keep the normaliser
    in float32. Over ranks: divide by their number before the all-reduce, or reduce in float32.

When it is wrong
    When single elements are already near the limit, length is not the matter: look at what made them so large.
"""

from __future__ import annotations

import math

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, TensorFacts, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import CONVOLUTION, MATMUL, REDUCTION, base, subject
from hypocenter.diagnose.rulings import dtype_of, fact, floating, has_lost_partial_sums, limit_of, overflow, ran_away
from hypocenter.diagnose.verdicts import cause
from hypocenter.summary.reductions import mean_magnitude, rms

_SHOWN = 8  # ranks whose share a sentence lists


@cause("accumulation-overflow", order=190)
def decide(evidence: Evidence) -> Verdict | None:
    """A reduction that is finite in float64 and does not fit, or whose partial sums did not."""
    origin = evidence.origin
    if origin is None:
        return _over_ranks(evidence) or _over_microbatches(evidence)
    name = base(origin.op)
    if origin.phase == "backward" or not (name in REDUCTION or name in MATMUL or name in CONVOLUTION):
        return None
    found = overflow(evidence)
    if found is None:
        return _partial_sums(evidence, origin)
    if name not in REDUCTION and not _contracts_positive_terms(origin):
        return None
    return Verdict(
        cause="accumulation-overflow",
        confidence=found.confidence,
        title=f"{subject(origin)} overflowed {found.dtype}",
        why=(
            *why.inputs(evidence),
            *why.exceeded(evidence, found),
            *_critical_length(origin, found.limit, found.actual),
        ),
        limit=found.limit,
        actual=found.actual,
        advice="accumulate in float32, or divide before adding",
    )


def _partial_sums(evidence: Evidence, origin: OpFacts) -> Verdict | None:
    rerun, limit = evidence.float64, limit_of(evidence)
    if limit is None or not has_lost_partial_sums(evidence) or ran_away(evidence) is not None:
        return None
    dtype = dtype_of(evidence)
    return Verdict(
        cause="accumulation-overflow",
        confidence="likely",
        title=f"partial sums of {subject(origin)} overflowed {dtype}",
        why=(
            *why.inputs(evidence),
            f"in float64 the result is {short(rerun.absmax)} and would fit; in {dtype} it is not finite each time: "
            "what is added up on the way does not fit",
            *_critical_length(origin, limit),
        ),
        limit=limit,
        advice="accumulate in float32",
    )


def _over_ranks(evidence: Evidence) -> Verdict | None:
    total = evidence.added_up
    if total is None:
        return None
    each = ", ".join(f"{short(share)} (rank {rank})" for rank, share in enumerate(total.shares[:_SHOWN]))
    more = f" and {len(total.shares) - _SHOWN} more" if len(total.shares) > _SHOWN else ""
    what = "" if total.is_exact else "at most "
    return Verdict(
        cause="accumulation-overflow",
        confidence="proven" if total.is_exact else "likely",
        title=f"the sum of {len(total.shares)} ranks' gradients overflowed {total.dtype}",
        why=(
            f"the gradient of {total.param} is finite on every rank when its step is replayed alone: {what}"
            f"{each}{more}",
            f"added up they come to {short(total.absmax)} > {short(total.limit)}, the largest {total.dtype}",
        ),
        limit=total.limit,
        actual=total.absmax,
        advice="divide by the number of ranks before the all-reduce and not after it, or reduce in float32",
    )


def _over_microbatches(evidence: Evidence) -> Verdict | None:
    n = fact(evidence, "accumulated")
    if n is None or evidence.leaf is not None or evidence.trigger not in ("nonfinite-grad", "skipped-step"):
        return None
    rerun, limit = evidence.float64, evidence.limit
    is_proven = rerun.ran and limit is not None and rerun.absmax > limit
    alone = "every micro-batch has finite gradients when it is replayed alone; only their sum is not finite"
    summed = f"added up in float64 the largest gradient is {short(rerun.absmax)} > {short(limit or 0.0)}"
    return Verdict(
        cause="accumulation-overflow",
        confidence="proven" if is_proven else "likely",
        title=f"the sum of {n:.0f} micro-batches' gradients overflowed",
        why=(alone, summed) if is_proven else (alone,),
        limit=limit,
        actual=rerun.absmax if is_proven else None,
        advice="divide the loss by the number of micro-batches before backward, or accumulate gradients in float32",
    )


def _contracts_positive_terms(origin: OpFacts) -> bool:
    text = origin.source.text if origin.source is not None else ""
    operands = floating(origin)
    return "einsum(" in text and len(operands) >= 2 and all((t.summary.min or 0.0) >= 0 for t in operands)


def _critical_length(origin: OpFacts, limit: float, actual: float | None = None) -> tuple[str, ...]:
    """Say from which length on it overflows, and by which bound (hypocenter.summary.reductions)."""
    operands, name = floating(origin), base(origin.op)
    output = origin.outputs[0] if origin.outputs else None
    if not operands or output is None or operands[0].summary.n_nonfinite:
        return ()
    if name in MATMUL:
        return _critical_dimension(operands, limit, actual)
    length, s = _length(operands[0], output, origin), operands[0].summary
    mean, typical = mean_magnitude(s), rms(s)
    if length < 2:
        return ()
    if name in ("norm", "linalg_vector_norm") and typical:
        critical = math.floor((limit / typical) ** 2)
        said = f"{length:,} terms of rms {short(typical)} go into it; it overflows from about {critical:,} terms on"
    elif name not in ("sum", "cumsum", "nansum", "mean", "nanmean"):
        return ()
    elif mean:
        critical = math.floor(limit / mean)
        said = f"{length:,} terms of mean {short(mean)} are added; it overflows from about {critical:,} terms on"
    elif mean is None and typical:
        critical = math.floor(limit / typical)
        said = f"{length:,} terms of rms {short(typical)} are added; it cannot overflow below {critical:,} terms"
    else:
        return ()
    return (said,) if critical >= 1 else ()


def _critical_dimension(operands: tuple[TensorFacts, ...], limit: float, actual: float | None) -> tuple[str, ...]:
    """Say from which inner dimension on a matrix product overflows, if it grows in proportion to it."""
    inner = operands[0].shape[-1] if operands[0].shape else 0
    if not actual or not math.isfinite(actual) or inner < 2:
        return ()
    critical = math.floor(inner * limit / actual)
    if critical < 1:
        return ()
    return (f"{inner:,} products are added; in proportion to them it overflows from about {critical:,} on",)


def _length(operand: TensorFacts, output: TensorFacts, origin: OpFacts) -> int:
    dim = origin.scalars.get("dim")
    if base(origin.op) == "cumsum" and isinstance(dim, int) and operand.shape:
        return operand.shape[dim]
    return operand.summary.n // max(1, math.prod(output.shape))
