"""Stage 8: one parallel feature or card count after another, each aligned in turn."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.align.alignment import Alignment, StageResult, result
from hypocenter.align.context import Context


def judge(context: Context) -> StageResult:
    """Fail at the first widening that stops; the ones after it are not done."""
    wide = context.plan.widening
    if not wide or context.align_widened is None:
        how = "[[widening]] name, baseline, candidate: one feature or card count after another"
        return result(8, "skipped", "the plan lists no widening", next=(how,))
    told: list[dict[str, object]] = []
    doubts: list[str] = []
    for one in wide:
        found = context.align_widened(one)
        told.append({"name": one.name, "status": found.status, "stage": found.stage, "sentence": found.sentence})
        if found.status == "stopped":
            return _stopped(one.name, found, told)
        doubts += [one.name] if found.status == "cannot-tell" else []
    names = ", ".join(one.name for one in wide)
    if doubts:
        return result(8, "cannot-tell", f"nobody can tell of {', '.join(doubts)}", figures={"widening": told},
                      why=tuple(f"{one['name']}: {one['sentence']}" for one in told))  # fmt: skip
    return result(8, "passed", f"aligned with {names} as well", figures={"widening": told})


def _stopped(name: str, found: Alignment, told: list[dict[str, object]]) -> StageResult:
    at = next(stage for stage in found.stages if stage.verdict == "failed")
    return replace(
        at, stage=8, name="widening", sentence=f"with {name} it stops at stage {at.stage}, {at.name}: {at.sentence}",
        figures={**at.figures, "widening": told, "inner_stage": at.stage},
    )  # fmt: skip
