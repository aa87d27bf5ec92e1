"""The sentences that all causes of a jump share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.rulings import fact

BEFORE = 3  # updates in which a learning rate may have risen
RISE = 2.0  # times
FAR = 8.0  # times the usual: batches and samples that are right, and hard, make smaller jumps now and then


def jumped(evidence: Evidence) -> tuple[str, ...]:
    """Say "the loss is 9.8, 4.7 times what was usual", and whether a learning rate rose just before."""
    now, usual = fact(evidence, "now") or 0.0, fact(evidence, "usual") or 1.0
    of = what_jumped(evidence)
    rate = rate_rose(evidence)
    return (f"{of} is {short(now)}, {times(abs(now) / usual)} what was usual", *((rate,) if rate else ()))


def is_far(evidence: Evidence) -> bool:
    """Return whether it jumped by more than what a healthy run does now and then."""
    return abs(fact(evidence, "now") or 0.0) >= far(evidence) * (fact(evidence, "usual") or 1.0)


def far(evidence: Evidence) -> float:
    """Return how many times the usual counts as far; more where few values were known to compare with."""
    return FAR ** (fact(evidence, "few") or 1.0)


def rise(rates: Iterable[tuple[int, float]]) -> dict[str, float | str]:
    """Return the last rise of a learning rate, as facts of evidence; {} without one.

    Args:
        rates: (step, learning rate) of the last updates of one optimizer.
    """
    found: dict[str, float | str] = {}
    for (_, before), (step, rate) in itertools.pairwise(rates):
        if before and rate >= RISE * before:
            found = {"lr_before": before, "lr": rate, "lr_step": float(step)}
    return found


def rose(before: float, rate: float, step: int) -> str:
    """Say "the learning rate rose from 1e-3 to 1 at step 12"."""
    return f"the learning rate rose from {short(before)} to {short(rate)} at step {step}"


def rate_rose(evidence: Evidence) -> str:
    """Say how the learning rate rose in the updates before a jump; "" if it did not."""
    before, rate, step = fact(evidence, "lr_before"), fact(evidence, "lr"), fact(evidence, "lr_step")
    return "" if before is None or rate is None or step is None else rose(before, rate, int(step))


def what_jumped(evidence: Evidence) -> str:
    """Name what jumped: the loss, the gradient's norm, or that of one parameter."""
    of = str(evidence.facts.get("of", "the loss"))
    if of == "the loss":
        return of
    if of == "the gradient of this rank":
        return "the norm of this rank's own gradient"
    return "the gradient's norm" if of == "the gradient" else f"the norm of the gradient of {of}"


def followed(evidence: Evidence) -> tuple[str, ...]:
    """Say what the update did with gradients that jumped: clipping, and how long its optimizer remembers them."""
    before, after, used = fact(evidence, "clipped_from"), fact(evidence, "clipped_to"), fact(evidence, "used")
    found: list[str] = []
    if before is not None and after is not None:
        found.append(f"the gradient was clipped from {short(before)} to {short(after)} before the update")
    if used is not None:
        found.append(f"the update used a gradient {times(used)} as large as usual")
    first, second = fact(evidence, "n_first"), fact(evidence, "n_second")
    if first:
        decay = short(fact(evidence, "first") or 0.0)
        found.append(f"it outweighs all others in the optimizer's mean of gradients for {first:,.0f} updates ({decay})")
    if second:
        decay = short(fact(evidence, "second") or 0.0)
        found.append(f"its square keeps updates at half their size or less for {second:,.0f} updates ({decay})")
    return tuple(found)


def times(factor: float) -> str:
    """Write a factor: "4.7 times", "2,000 times", "3.1e9 times"."""
    if factor < 10:
        return f"{factor:.1f} times"
    return f"{factor:,.0f} times" if factor < 1e6 else f"{short(factor)} times"


def grown(evidence: Evidence) -> str:
    """Say "4.7 times larger than usual", "as large as 3.1, usually only zeros"; "" if nothing is known."""
    size, usual = fact(evidence, "size"), fact(evidence, "usual_size")
    if size is None or usual is None:
        return ""
    return f"{times(size / usual)} larger than usual" if usual else f"as large as {short(size)}, usually only zeros"


def sizes(evidence: Evidence) -> tuple[str, ...]:
    """Say how large the values of the place are, compared with healthy steps."""
    size, usual = fact(evidence, "size"), fact(evidence, "usual_size")
    if size is None:
        return ()
    n = fact(evidence, "n_traces") or 0
    if usual is None:
        return (f"its largest value is {short(size)}; no healthy step that was traced had this operation",)
    return (
        f"its largest value is {short(size)}; in {n:.0f} healthy steps that were traced it was at most {short(usual)}",
    )
