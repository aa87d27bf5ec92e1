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
    """Return the base name of the operator that ran; in backward `op` is the forward operator of its gradient."""
    return base(str(origin.scalars.get("backward_op", origin.op)))


def differentiated_op(origin: OpFacts) -> str:
    """Return the base name of the forward operator whose gradient a backward op computes."""
    return forward_of(origin.node) if origin.node else base(origin.op)


def bad_output(evidence: Evidence) -> TensorFacts | None:
    """Return the output of the blamed op that went wrong; None when there is no such op."""
    if evidence.origin is None:
        return None
    outputs = evidence.origin.outputs
    return next((o for o in outputs if o.summary.n_nonfinite), outputs[0] if outputs else None)


def limit_of(evidence: Evidence) -> float | None:
    """Return the largest value of the format of the blamed output; None when not known."""
    output = bad_output(evidence)
    return evidence.limit or (LARGEST.get(output.dtype) if output is not None else None)


def dtype_of(evidence: Evidence) -> str:
    """Return the format of the blamed output."""
    output = bad_output(evidence)
    if output is not None and output.dtype:
        return output.dtype
    return next((name for name, largest in LARGEST.items() if largest == evidence.limit), "its format")


def overflow(evidence: Evidence) -> Overflow | None:
    """Return the overflow that float64 proves or, when nothing was run again, that magnitudes suggest; else None."""
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
    """Return an overflow of a wide format by operands that no healthy network has: the format is not the matter.

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
    """Return whether the result is not finite each time, although in float64 it is and would fit."""
    rerun, limit = evidence.float64, limit_of(evidence)
    again, is_finite_there = evidence.again, evidence.cpu.ran and evidence.cpu.finite
    repeats = again.ran and again.equal_bits and again.repeats and not is_finite_there
    fits = rerun.ran and rerun.finite and limit is not None and rerun.absmax <= limit
    return fits and repeats and evidence.leaf is None


def singular(evidence: Evidence) -> Confidence | None:
    """Return proven if float64 is not finite either, likely if nothing was executed again, None if it is finite."""
    if evidence.origin is None or evidence.leaf is not None:
        return None
    if not evidence.float64.ran:
        return "likely"
    return None if evidence.float64.finite else "proven"


def has_zero(tensor: TensorFacts | None) -> bool:
    """Return whether the tensor holds an exact zero (False when a sampled summary saw none, which is no proof)."""
    return tensor is not None and tensor.summary.n_zero > 0


def fact(evidence: Evidence, name: str) -> float | None:
    """Return a measured number; None when it was not measured."""
    value = evidence.facts.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def scalar(origin: OpFacts, name: str) -> float | None:
    """Return a numeric argument of the op; None when it has none of this name."""
    value = origin.scalars.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def floating(origin: OpFacts) -> tuple[TensorFacts, ...]:
    """Return the inputs in a floating-point format."""
    return tuple(t for t in origin.inputs if t.dtype.startswith(("float", "bfloat", "complex")))


def masked_by(evidence: Evidence) -> str:
    """Return what drops the value in forward, as far as the evidence shows it: "where", "a mask", or ""."""
    named = evidence.facts.get("selected_by")
    if isinstance(named, str) and named:
        return base(named)
    text = " ".join(op.source.text for op in (evidence.origin,) if op is not None and op.source is not None)
    match = re.search(r"\b(where|masked_fill_?|masked_select|nan_to_num_?)\s*\(", text)
    return match[1].rstrip("_") if match else ""


def supported(evidence: Evidence) -> Confidence:
    """Return proven when the replay showed the failure again, else likely: for claims about where it was."""
    return "proven" if evidence.replayed and evidence.reproduced else "likely"


def _bound(origin: OpFacts) -> float:
    """Return an upper bound of |output| from the operands, 0 for operators of which nothing is known."""
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
