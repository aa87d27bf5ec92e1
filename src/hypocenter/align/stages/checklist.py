"""Stage 0: the two configurations, item by item."""

from __future__ import annotations

from hypocenter.align.alignment import StageResult, named, result
from hypocenter.align.context import Context
from hypocenter.checklist.checklist import Row
from hypocenter.checklist.compare import compare
from hypocenter.checklist.reading import read

_APART = ("different", "only-baseline", "only-candidate")


def judge(context: Context) -> StageResult:
    """Fail when an item that changes numbers for certain is different."""
    plan = context.plan
    sides = [[plan.folder / name for name in side.config] for side in (plan.baseline, plan.candidate)]
    if not all(sides):
        who = [name for name, files in zip(("baseline", "candidate"), sides, strict=True) if not files]
        return result(
            0, "skipped", f"no configuration files of the {' and the '.join(who)} are named in the plan",
            next=(f'[{who[0]}] config = ["train.sh"] in {plan.path.name}',),
        )  # fmt: skip
    found = compare(read(sides[0]), read(sides[1]))
    apart = [row for row in found.rows if row.verdict in _APART]
    wrong = [row for row in apart if row.severity == "error" and row.verdict == "different"]
    figures = {"rows": [_plain(row) for row in found.rows if row.verdict not in ("same", "not-set")]}
    again = (f"hypocenter checklist {' '.join(plan.baseline.config)} {' '.join(plan.candidate.config)}",)
    if wrong:
        first = wrong[0]
        return result(
            0, "failed", f"{len(wrong)} items differ that change the numbers: "
            f"{named(f'{row.title} is {row.baseline} against {row.candidate}' for row in wrong)}",
            site=first.item, cause="config-mismatch", confidence="proven",
            why=tuple(f"{row.title}: {row.baseline} against {row.candidate}. {row.why}" for row in wrong),
            next=(*(row.fix for row in wrong if row.fix), *again), figures=figures,
        )  # fmt: skip
    known = [row for row in found.rows if row.verdict != "not-set"]
    words = f"{len(known)} items are the same"
    if apart:
        words = f"no item differs that must be the same; {len(apart)} of {len(known)} are otherwise"
    return result(0, "passed", words, figures=figures, why=tuple(
        f"{row.title}: {row.baseline} against {row.candidate} ({row.verdict}). {row.why}" for row in apart[:5]
    ), next=again if apart else ())  # fmt: skip


def _plain(row: Row) -> dict[str, object]:
    return {
        "item": row.item, "baseline": row.baseline, "candidate": row.candidate, "verdict": row.verdict,
        "severity": row.severity, "why": row.why,
    }  # fmt: skip
