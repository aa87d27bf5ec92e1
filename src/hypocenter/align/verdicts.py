"""Stage results, and how a comparison of two runs becomes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypocenter.align.alignment import STAGES, StageResult, StageVerdict
from hypocenter.compare.comparison import Comparison, RowComparison

_SHOWN = 5  # names in a sentence before the rest is counted


def result(stage: int, verdict: StageVerdict, sentence: str, **others: Any) -> StageResult:
    """A result with the stage's name."""
    return StageResult(stage=stage, name=STAGES[stage], verdict=verdict, sentence=sentence, **others)


def of_comparison(stage: int, found: Comparison, sentence: str = "", **others: Any) -> StageResult:
    """What a comparison that is not "same" says, as the result of a stage.

    Args:
        sentence: what is said in place of the comparison's own.
    """
    first = found.first
    fix = (found.fit.fix,) if found.fit is not None and found.fit.fix else ()
    told = result(
        stage, "failed" if found.status == "diverged" else "cannot-tell", sentence or _without_place(found),
        cause=found.cause or "unknown", confidence=found.confidence, why=tuple(found.why), next=fix, **others,
    )  # fmt: skip
    if first is None:
        return told
    return replace(told, step=first.step, phase=first.phase, site=first.site)


def _without_place(found: Comparison) -> str:
    """The comparison's sentence; where step and phase are said beside it, without them."""
    head, _, rest = found.sentence.partition(": ")
    return rest.partition(", first of ")[0] if found.status == "diverged" and rest else found.sentence or head


def named(names: Iterable[str]) -> str:
    """`a, b, c and 4 more`."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def farther(error: float, floor: float) -> str:
    """`apart by 0.11, 13 times the noise floor of 0.0078`."""
    if error == 0.0:
        return "equal"
    if floor == 0.0:
        return f"apart by {error:.2g} (noise floor 0)"
    return f"apart by {error:.2g}, {error / floor:.2g} times the noise floor of {floor:.2g}"


def same_size(row: RowComparison) -> str:
    """How far a row is apart, in words."""
    assert row.distance is not None
    return farther(row.distance.relative, row.floor.relative) if row.verdict != "equal" else "equal to the bit"
