"""An operation made its results far larger than it usually does.

What it means
    The loss or a gradient jumped and stayed finite. It began at one operation: what it read is as large as in any step,
    and what it gave is not. A division by almost nothing, a temperature that goes to zero, the derivative of a root or
    a norm near zero, a sum over many more terms, a factor that is set for this step only.

How it is decided
    The step is done again with the size of what every operation gives, and compared with the same operations in
    healthy steps that were traced before. Walking back from the loss or the gradient, the first operation whose result
    is larger than usual by more than its usual spread, though what it read is not, is named. One that only chooses or
    averages what it reads is never named, and a sum only if it has more terms than usual. In backward, which is linear
    in gradients, one that makes far more of too large a gradient than that explains is named too. Where no operation is
    found so, one that no healthy step had is named; that is likely only, so the jump stays a note. So does one of less
    than 8 times the usual (of more where fewer than 32 steps were before it): in a healthy run a hard batch makes one
    now and then.

What to do
    Look at the operands that are shown: a small divisor needs a floor, a root an epsilon inside, a temperature a bound.
    Where samples are named, look at them: they are what is unusual.

When it is wrong
    When the program does this on purpose and rarely: a term of the loss that is switched on at a step.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.operators import subject
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import far, grown, is_far, jumped, sizes, times
from hypocenter.diagnose.verdicts import cause


@cause("exploding-gain", order=32, of_spikes=True)
def decide(evidence: Evidence) -> Verdict | None:
    """What it read is as usual, what it gave is not."""
    origin = evidence.origin
    if origin is None or evidence.leaf is not None:
        return None
    size, usual = fact(evidence, "size"), fact(evidence, "usual_size")
    farthest = fact(evidence, "farthest") or 0.0  # of the loss, or of the gradient
    has_gone_far = is_far(evidence) or farthest >= far(evidence)
    return Verdict(
        cause="exploding-gain",
        confidence="proven" if usual is not None and has_gone_far else "likely",
        title=f"{subject(origin)} {_gives(evidence)}",
        why=(*jumped(evidence), *sizes(evidence), *_operands(evidence), *_terms(evidence), *_nth(evidence)),
        limit=usual,
        actual=size,
        advice="look at its operands: a divisor, a root or a temperature near zero needs a bound",
    )


def _gives(evidence: Evidence) -> str:
    gain = fact(evidence, "gain")
    if evidence.facts.get("is_new"):
        return "ran, which no healthy step that was traced had"
    return f"gives values {grown(evidence) or f'{times(gain or 0.0)} larger than what it reads'}"


def _operands(evidence: Evidence) -> tuple[str, ...]:
    at = evidence.facts.get("at_largest")
    if isinstance(at, str) and at:
        return (f"at its largest result it read {at}",)
    shown = (
        [f"{t.name} |max| {short(t.summary.absmax)}" for t in evidence.origin.inputs if t.summary.n][:4]
        if evidence.origin
        else []
    )
    return (f"it read {', '.join(shown)}",) if shown else ()


def _terms(evidence: Evidence) -> tuple[str, ...]:
    n_read, usual = fact(evidence, "n_read"), fact(evidence, "usual_n_read")
    if n_read is None or usual is None:
        return ()
    return (f"it read {n_read:,.0f} values, usually at most {usual:,.0f}",)


def _nth(evidence: Evidence) -> tuple[str, ...]:
    """Say in which turn of a loop it began, for a line that runs several times; () for others."""
    nth, n = fact(evidence, "nth"), fact(evidence, "n_times")
    if nth is None or n is None:
        return ()
    return (f"the line does this {n:.0f} times in a micro-batch; it began in turn {nth:.0f}, counted from 0",)
