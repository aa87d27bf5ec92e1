"""What re-execution and the operands say about the blamed op: overflowed, singular, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypocenter.diagnose.evidence import Evidence, OpFacts, TensorFacts
from hypocenter.diagnose.numbers import HUGE, WIDE_LIMIT
from hypocenter.diagnose.operators import CAST, CONVOLUTION, MATMUL, PRODUCT, SUM, base, forward_of
from hypocenter.formats import LARGEST
from hypocenter.nouns import Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A result that exists but does not fit its format."""

    dtype: str
    limit: float  # largest value of the format
    actual: float  # largest magnitude of the true result; a bound from the operands when it was not executed
    confidence: Confidence


def executed_op(origin: OpFacts) -> str:
    """Base name of the operator that really ran: in backward `op` is the forward operator whose gradient it was."""
    return base(str(origin.scalars.get("backward_op", origin.op)))


def differentiated_op(origin: OpFacts) -> str:
    """Base name of the forward operator whose gradient a backward op computes."""
    return forward_of(origin.node) if origin.node else base(origin.op)


def bad_output(evidence: Evidence) -> TensorFacts | None:
    """The output of the blamed op that went wrong."""
    if evidence.origin is None:
        return None
    outputs = evidence.origin.outputs
    return next((o for o in outputs if o.summary.n_nonfinite), outputs[0] if outputs else None)


def limit_of(evidence: Evidence) -> float | None:
    """Largest value of the format of the blamed output."""
    output = bad_output(evidence)
    return evidence.limit or (LARGEST.get(output.dtype) if output is not None else None)


def dtype_of(evidence: Evidence) -> str:
    """Format of the blamed output."""
    output = bad_output(evidence)
    if output is not None and output.dtype:
        return output.dtype
    return next((name for name, largest in LARGEST.items() if largest == evidence.limit), "its format")


def overflow(evidence: Evidence) -> Overflow | None:
    """The overflow that float64 proves or, when nothing was executed again, that the operands' magnitudes suggest."""
    origin, limit = evidence.origin, limit_of(evidence)
    if origin is None or limit is None or evidence.leaf is not None:
        return None
    if evidence.float64.ran:
        actual, confidence = evidence.float64.absmax, "proven"
        if not evidence.float64.finite or actual <= limit:
            return None
    else:
        actual, confidence = _bound(origin), "likely"
        output = bad_output(evidence)
        if actual <= limit or output is None or output.summary.n_nan or not output.summary.n_nonfinite:
            return None
    return Overflow(dtype=dtype_of(evidence), limit=limit, actual=actual, confidence=confidence)


def ran_away(evidence: Evidence) -> Overflow | None:
    """An overflow of a wide format with operands that no healthy network has: then the format is not the matter.

    The result itself, or what is added up on the way to one that would fit.
    """
    limit = limit_of(evidence)
    if evidence.origin is None or limit is None or limit < WIDE_LIMIT:
        return None
    if max((t.summary.absmax for t in floating(evidence.origin)), default=0.0) < HUGE:
        return None
    found = overflow(evidence)
    if found is None and has_lost_partial_sums(evidence):
        return Overflow(dtype=dtype_of(evidence), limit=limit, actual=evidence.float64.absmax, confidence="likely")
    return found


def has_lost_partial_sums(evidence: Evidence) -> bool:
    """Whether the result is not finite each time, although in float64 it is and would fit."""
    rerun, limit = evidence.float64, limit_of(evidence)
    again, is_finite_there = evidence.again, evidence.cpu.ran and evidence.cpu.finite
    repeats = again.ran and again.equal_bits and again.repeats and not is_finite_there
    fits = rerun.ran and rerun.finite and limit is not None and rerun.absmax <= limit
    return fits and repeats and evidence.leaf is None


def singular(evidence: Evidence) -> Confidence | None:
    """Proven when float64 is not finite either, likely when nothing was executed again, None when float64 is finite."""
    if evidence.origin is None or evidence.leaf is not None:
        return None
    if not evidence.float64.ran:
        return "likely"
    return None if evidence.float64.finite else "proven"


def has_zero(tensor: TensorFacts | None) -> bool:
    """Whether the tensor holds an exact zero (a sampled summary that saw none is no proof of none, and says no)."""
    return tensor is not None and tensor.summary.n_zero > 0


def fact(evidence: Evidence, name: str) -> float | None:
    """A measured number; None when it was not measured."""
    value = evidence.facts.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def scalar(origin: OpFacts, name: str) -> float | None:
    """A numeric argument of the op; None when it has none of this name."""
    value = origin.scalars.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def floating(origin: OpFacts) -> tuple[TensorFacts, ...]:
    """The inputs in a floating format."""
    return tuple(t for t in origin.inputs if t.dtype.startswith(("float", "bfloat", "complex")))


def masked_by(evidence: Evidence) -> str:
    """What selects the value away in forward, as far as the evidence shows it: "where", "a mask", or ""."""
    named = evidence.facts.get("selected_by")
    if isinstance(named, str) and named:
        return base(named)
    text = " ".join(op.source.text for op in (evidence.origin,) if op is not None and op.source is not None)
    match = re.search(r"\b(where|masked_fill_?|masked_select|nan_to_num_?)\s*\(", text)
    return match[1].rstrip("_") if match else ""


def supported(evidence: Evidence) -> Confidence:
    """Proven when the replay showed the failure again, else likely: for claims about where, not about arithmetic."""
    return "proven" if evidence.replayed and evidence.reproduced else "likely"


def _bound(origin: OpFacts) -> float:
    """An upper bound of |output| from the operands, 0 for operators of which nothing is known."""
    name, inputs = base(origin.op), floating(origin)
    if origin.phase == "backward" or not inputs:
        return 0.0
    sizes = [t.summary.absmax for t in inputs]
    if name in CAST:
        return sizes[0]
    if name in SUM:
        return sum(sizes)
    if name in PRODUCT and len(sizes) >= 2:
        return sizes[0] * sizes[1]
    if (name in MATMUL or name in CONVOLUTION) and len(sizes) >= 2:
        left, right = sorted(inputs, key=lambda t: -len(t.shape))[:2]
        inner = left.shape[-1] if left.shape else 1
        return left.summary.absmax * right.summary.absmax * inner
    return 0.0
