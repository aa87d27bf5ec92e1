"""An index pointed outside its table.

What it means
    A token id, label or position is below 0 or at least as large as the table it looks up. The CPU raises an
    error for it; an accelerator may assert later, or read memory that holds anything.

How it is decided
    Of a call that raised: it is made again with 0 in place of its whole numbers and goes through, and with one of
    them it raises; the length of the table is where a trial begins to raise. Proven, of any operator.
    Of one that did not raise: the blamed operation looks up a table, and the largest or smallest index that was
    captured lies outside it. From the operands alone, without re-execution (which would read out of bounds again):
    likely.

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

_ADVICE = "compare the number of rows of the table with the largest index: vocabulary, classes, positions"


@cause("index-out-of-range", order=80)
def decide(evidence: Evidence) -> Verdict | None:
    """An index was shown to make the call raise, or the captured indices lie outside the captured table."""
    if evidence.trigger == "crash":
        return _shown(evidence)
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
        advice=_ADVICE,
    )


def _shown(evidence: Evidence) -> Verdict | None:
    """Return the verdict that trials in the dying process showed; None when they showed none."""
    facts, origin = evidence.facts, evidence.origin
    value, size = facts.get("index"), facts.get("size")
    if origin is None or not isinstance(value, float):
        return None
    table = f" of {size:.0f}" if isinstance(size, float) else ""
    n_more = float(facts.get("n_bad", 1.0)) - 1
    others = f", and {n_more:.0f} other value{'s' if n_more > 1 else ''} outside of it" if n_more > 0 else ""
    where = f"; in the batch it is {facts['batch']} at {facts['batch_at']}" if "batch" in facts else ""
    return Verdict(
        cause="index-out-of-range",
        confidence="proven",
        title=f"{base(origin.op)} was asked for index {value:.0f}{table}",
        why=(
            f"{facts.get('argument')} holds {value:.0f} at {facts.get('at')}{others}{where}",
            "with 0 in its place the call goes through",
        ),
        limit=None if not isinstance(size, float) else size - 1,
        actual=value,
        advice=_ADVICE,
    )


def _size(table: TensorFacts | None, dim: object) -> int | None:
    if table is None or not table.shape or not isinstance(dim, int) or dim >= len(table.shape):
        return None
    return table.shape[dim]
