"""From checks to one answer, one sentence, and what to do now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hypocenter.compare.curves.comparison import Check, CurveVerdict
from hypocenter.compare.curves.evidence import Evidence
from hypocenter.compare.curves.noise import grows
from hypocenter.compare.curves.statistics import change_point
from hypocenter.nouns import Confidence

_PROOF = frozenset(("finite", "learning-rate"))  # facts, where the others are statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Verdict, how sure, and its sentence."""

    status: CurveVerdict
    confidence: Confidence
    sentence: str


def answer(found: Evidence, checks: Sequence[Check], *, same_kind: bool) -> Answer:
    """Departed if a check failed that shows it; accepted if all that decide passed; else it cannot be told.

    A grad norm alone that is apart accuses nobody when two kinds of log were compared, which may print it before and
    after clipping or scaling, or when the noise was not measured.
    """
    failed = [check for check in checks if check.status == "fail" and check.decides]
    known = found.source == "repeats"
    accusing = [c for c in failed if c.name not in ("grad-norm", "frozen-grad-norm") or (known and same_kind)]
    if accusing:
        worst = next((c for c in accusing if c.name in _PROOF), accusing[0])
        confidence: Confidence = "proven" if worst.name in _PROOF else "likely" if known else "possible"
        return Answer(status="departed", confidence=confidence, sentence=_departed(found, checks, worst))
    open_ = [check for check in checks if check.status in ("cannot-tell", "fail") and check.decides]
    if open_:
        return Answer(status="cannot-tell", confidence="possible", sentence=_open(found, open_))
    return Answer(status="accepted", confidence="likely" if known else "possible", sentence=_accepted(found))


def _departed(found: Evidence, checks: Sequence[Check], worst: Check) -> str:
    if worst.name == "learning-rate":
        loss_is_fine = all(c.status == "pass" for c in checks if c.name in ("sustained", "late-drift", "finite"))
        beside = "; the losses agree so far" if loss_is_fine else "; the losses are apart too"
        at = f" at step {worst.step:,}" if worst.step is not None else ""
        return f"departed{at}: {worst.text}{beside}"
    if worst.name == "sustained" and found.apart is not None:
        return f"departed at step {_step(found, found.apart.begins)}: {_gap(found, found.apart.gap)}{_ends(found)}" + (
            f" ({_floor(found, found.apart.floor)})"
        )
    if worst.name == "late-drift":
        at = min(change_point(found.difference), len(found.difference) - 1)
        where = f"departed about step {_step(found, at)}: over the last third "
        return where + f"{_gap(found, found.late.gap)} ({_floor(found, found.late_floor)})"
    at = f" at step {worst.step:,}" if worst.step is not None else ""
    return f"departed{at}: {worst.text}"


def _open(found: Evidence, checks: Sequence[Check]) -> str:
    unmeasured = (
        "" if found.source == "repeats" else "; no repeat of the baseline was given that says whether it is noise"
    )
    if any(check.name == "end" for check in checks):
        late = found.late
        where = "at the end the candidate's loss is"
        side = "above" if late.end_gap > 0 else "below"
        return f"cannot tell: {where} {abs(late.end_gap):.3g} ({late.end_share:.1%}) {side} the baseline's{unmeasured}"
    return f"cannot tell: {checks[0].text}{unmeasured}"


def _step(found: Evidence, at: int) -> str:
    return f"{found.pair.steps[at]:,}"


def _gap(found: Evidence, gap: float) -> str:
    return f"the candidate's loss is {abs(gap):.3g} {'above' if gap > 0 else 'below'} the baseline's"


def _ends(found: Evidence) -> str:
    apart = found.apart
    if apart is None or apart.ends >= len(found.pair.steps) - 1:
        return ", to the end" + (", and growing" if grows(found.late, 1e-3) else "")
    return f", until step {_step(found, apart.ends)}"


def _floor(found: Evidence, floor: float) -> str:
    if found.source == "repeats":
        return f"noise floor {floor:.2g}, measured on {_count(len(found.noise.samples), 'repeat')}"
    return f"the baseline's own unrest explains {floor:.2g}; no repeat was given"


def _accepted(found: Evidence) -> str:
    n, most = len(found.pair.steps), found.percentile(99)
    if not found.difference.any():
        return f"accepted: the losses are equal at all {n:,} steps"
    start = f"accepted: at {n:,} steps the losses differ by at most {most:.2g} (99 % of the steps), around zero"
    if found.source == "repeats":
        within = f"within the noise of {_count(len(found.noise.samples), 'repeat')} of the baseline"
        least = float(np.median(found.noise.least))
        mostly_rounding = least > found.typical_floor / 2
        return f"{start}, {within}" + (f" and {least:.2g} of rounding" if mostly_rounding else "")
    return f"{start}; no repeat of the baseline was given to measure its own error"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def next_steps(found: Evidence, checks: Sequence[Check], other_batch: int | None, status: str) -> Iterator[str]:
    """What the person does now, most useful first."""
    by_name = {check.name: check for check in checks}
    if other_batch is not None:
        yield f"give both runs the same batches in the same order: they differ from step {other_batch:,} on"
    if by_name["learning-rate"].status == "fail":
        yield "make the learning-rate schedules equal first: total steps, warm-up steps, smallest rate"
    broken = by_name.get("finite")
    if broken is not None and broken.status == "fail":
        yield f"record the candidate around step {broken.step}: hypocenter run --level sentinel … names the op"
    if status == "departed" and found.apart is not None:
        late = found.apart.begins > len(found.pair.steps) // 2
        if late:
            yield "good at first and apart later: compare optimizer, weight decay (on which weights), betas, precision"
        else:
            yield "compare the first two steps module by module: hypocenter run --level modules --sketch, then diff"
    if found.source != "repeats" and status != "accepted":
        yield "run the baseline twice more without determinism and give those runs with --noise: its own error decides"
    if status == "accepted":
        yield "evaluate a downstream task: the last word on accuracy"
