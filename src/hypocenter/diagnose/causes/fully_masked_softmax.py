"""A softmax had a row in which everything is masked.

What it means
    A row of nothing but -inf has no largest element: -inf - (-inf) = NaN. The -inf are a legitimate mask; a row
    without any allowed key is not. Padding rows, empty documents and a causal mask combined with a padding mask
    make such rows.

How it is decided
    The blamed operation is a softmax or attention, its input holds -inf from a mask, and the output NaNs fill
    whole rows (or fully masked rows were counted). Float64 is not finite either: proven. Without re-execution:
    likely.

What to do
    Let each row attend to something (itself, say), zero the output of such rows with where *before* the softmax
    sees them, or use a mask with the format's lowest finite number instead of -inf.

When it is wrong
    When +inf or an overflowed score is in the row: then the operation that made it is blamed instead.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.operators import ATTENTION, SOFTMAX, base
from hypocenter.diagnose.rulings import bad_output, fact, floating, singular
from hypocenter.diagnose.verdicts import cause


@cause("fully-masked-softmax", order=55)
def decide(evidence: Evidence) -> Verdict | None:
    """A softmax over nothing but -inf."""
    origin, confidence = evidence.origin, singular(evidence)
    if origin is None or confidence is None or origin.phase == "backward":
        return None
    name = base(origin.op)
    if name not in SOFTMAX and name not in ATTENTION:
        return None
    n_rows = _n_masked_rows(evidence, origin, attention=name in ATTENTION)
    if not n_rows:
        return None
    first = evidence.facts.get("first_masked_row") or (list(evidence.indices[0][:-1]) if evidence.indices else None)
    at = f", first row {first}" if first else ""
    word = "attention" if name in ATTENTION else name.strip("_")
    return Verdict(
        cause="fully-masked-softmax",
        confidence=confidence,
        title=f"{word} over a fully masked row",
        why=(
            f"{'1 row' if n_rows == 1 else f'{n_rows:,} rows'} of the input with nothing but -inf{at}",
            "the -inf are a mask that the program wrote; a row with no allowed key has no softmax",
            *why.not_finite_in_float64(evidence),
        ),
        advice="give each row at least one allowed key, or replace such rows before the softmax",
    )


def _n_masked_rows(evidence: Evidence, origin: OpFacts, *, attention: bool) -> int:
    measured = fact(evidence, "n_masked_rows")
    if measured is not None:
        return int(measured)
    output, operands = bad_output(evidence), floating(origin)
    n_neginf = sum(t.summary.n_neginf for t in operands)
    if output is None or not n_neginf or any(t.summary.n_posinf + t.summary.n_nan for t in operands):
        return 0
    row = output.shape[-1] if output.shape else 1
    rows, rest = divmod(output.summary.n_nan, max(1, row))
    if rest or (not attention and n_neginf < output.summary.n_nan):
        return 0
    return rows
