"""The sentences that all causes of a jump share."""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.rulings import fact


def jumped(evidence: Evidence) -> str:
    """ "the loss is 9.8, 4.7 times what was usual"."""
    now, usual = fact(evidence, "now") or 0.0, fact(evidence, "usual") or 1.0
    of = what_jumped(evidence)
    return f"{of} is {short(now)}, {times(abs(now) / usual)} what was usual"


def what_jumped(evidence: Evidence) -> str:
    """The loss, the gradient's norm, or that of one parameter."""
    of = str(evidence.facts.get("of", "the loss"))
    if of == "the loss":
        return of
    return "the gradient's norm" if of == "the gradient" else f"the norm of the gradient of {of}"


def times(factor: float) -> str:
    """ "4.7 times", "2,000 times", "3.1e9 times"."""
    if factor < 10:
        return f"{factor:.1f} times"
    return f"{factor:,.0f} times" if factor < 1e6 else f"{short(factor)} times"


def sizes(evidence: Evidence) -> tuple[str, ...]:
    """What the place gives, against what it gave in healthy steps."""
    size, usual = fact(evidence, "size"), fact(evidence, "usual_size")
    if size is None:
        return ()
    n = fact(evidence, "n_traces") or 0
    if usual is None:
        return (f"its largest value is {short(size)}; no healthy step that was traced had this operation",)
    return (
        f"its largest value is {short(size)}; in {n:.0f} healthy steps that were traced it was at most {short(usual)}",
    )
