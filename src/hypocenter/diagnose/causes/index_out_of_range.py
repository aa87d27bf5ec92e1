"""An index pointed outside its table.

What it means
    A token id, label or position is below 0 or at least as large as the table it looks up. The CPU raises an
    error for it; an accelerator may assert later, or read memory that holds anything.

How it is decided
    The blamed operation looks up a table, and the largest or smallest index that was captured lies outside it.
    From the operands alone, without re-execution (which would read out of bounds again): likely.

What to do
    Compare the tokenizer's vocabulary with the size of the embedding, and the labels with the number of
    classes.

When it is wrong
    When negative indices are meant to count from the end.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, TensorFacts, Verdict
from hypocenter.diagnose.operators import base, subject
from hypocenter.diagnose.verdicts import cause

_LOOKUPS = frozenset({"embedding", "embedding_bag", "_embedding_bag", "index_select"})


@cause("index-out-of-range", order=80)
def decide(evidence: Evidence) -> Verdict | None:
    """The captured indices lie outside the captured table."""
    origin = evidence.origin
    if origin is None or evidence.leaf is not None or base(origin.op) not in _LOOKUPS or origin.phase == "backward":
        return None
    table = next((t for t in origin.inputs if t.dtype.startswith(("float", "bfloat"))), None)
    index = next((t for t in origin.inputs if t.dtype.startswith(("int", "uint"))), None)
    size = _size(table, origin.scalars.get("dim", 0))
    if index is None or size is None or index.summary.min is None or index.summary.max is None:
        return None
    if index.summary.min >= 0 and index.summary.max < size:
        return None
    worst = index.summary.max if index.summary.max >= size else index.summary.min
    return Verdict(
        cause="index-out-of-range",
        confidence="likely",
        title=f"{subject(origin)} was asked for row {worst:.0f} of {size}",
        why=(f"indices go from {index.summary.min:.0f} to {index.summary.max:.0f}; the table has {size} rows",),
        limit=float(size - 1),
        actual=float(worst),
        advice="compare the vocabulary of the tokenizer with the size of the table",
    )


def _size(table: TensorFacts | None, dim: object) -> int | None:
    if table is None or not table.shape or not isinstance(dim, int) or dim >= len(table.shape):
        return None
    return table.shape[dim]
