"""The answer of `hypocenter align`: a verdict for each stage. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from hypocenter.compare.comparison import Comparison, RowComparison
from hypocenter.errors import HypocenterError
from hypocenter.in_words import some
from hypocenter.nouns import Confidence

StageVerdict = Literal["passed", "failed", "cannot-tell", "skipped", "not-run"]
Status = Literal["aligned", "stopped", "cannot-tell"]
STAGES = (
    "checklist", "preparation", "forward", "backward", "optimizer", "frozen", "noise floor", "long run", "widening",
)  # fmt: skip
_SHOWN = 5  # names in a sentence before the rest is counted


# their numbers, 0 to 8, are those of the document that the procedure is from


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What one stage found."""

    stage: Annotated[int, Meta(ge=0, le=8)]
    name: Annotated[str, Meta(extra_json_schema={"enum": STAGES})]
    verdict: StageVerdict
    sentence: Annotated[str, Meta(description="what was compared and what came out; empty of a stage not run")]
    step: Annotated[int | None, Meta(extra_json_schema={"minimum": 0})] = None
    phase: str | None = None
    site: Annotated[str | None, Meta(description="module, parameter or configuration item to blame")] = None
    cause: Annotated[str | None, Meta(description="of the closed vocabulary: hypocenter explain CAUSE")] = None
    confidence: Annotated[str | None, Meta(extra_json_schema={"enum": (*get_args(Confidence), None)})] = None
    why: tuple[str, ...] = ()
    next: Annotated[tuple[str, ...], Meta(description="what to do, as commands where there are any")] = ()
    runs: Annotated[tuple[str, ...], Meta(description="recordings, relative to the plan's folder")] = ()
    figures: Annotated[dict[str, Any], Meta(description="numbers and curves behind the verdict, by stage")] = field(
        default_factory=dict
    )
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    fingerprint: Annotated[str, Meta(description="of all that the stage rests on; empty of a stage not run")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """A verdict for each stage of a plan, as far as they went."""

    schema: Literal["hypocenter.alignment/1"] = "hypocenter.alignment/1"
    status: Status
    sentence: str
    plan: Annotated[str, Meta(description="path of plan.toml")]
    stage: Annotated[int | None, Meta(description="the stage that failed")]
    stages: tuple[StageResult, ...] = ()
    notes: tuple[str, ...] = ()


def result(stage: int, verdict: StageVerdict, sentence: str, **others: Any) -> StageResult:
    """Return a result of this stage, with the stage's name filled in."""
    return StageResult(stage=stage, name=STAGES[stage], verdict=verdict, sentence=sentence, **others)


def of_comparison(stage: int, found: Comparison, sentence: str = "", **others: Any) -> StageResult:
    """Turn a comparison that is not "same" into the result of a stage.

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
    """Return the comparison's sentence without step and phase, which are said beside it."""
    head, _, rest = found.sentence.partition(": ")
    return rest.partition(", first of ")[0] if found.status == "diverged" and rest else found.sentence or head


def named(names: Iterable[str]) -> str:
    """Join names as in `a, b, c and 4 more`, each once."""
    return some(dict.fromkeys(names), _SHOWN)


def farther(error: float, floor: float) -> str:
    """Say how far something is apart, as in `apart by 0.11, 13 times the noise floor of 0.0078`."""
    if error == 0.0:
        return "equal"
    if floor == 0.0:
        return f"apart by {error:.2g} (noise floor 0)"
    return f"apart by {error:.2g}, {error / floor:.2g} times the noise floor of {floor:.2g}"


def same_size(row: RowComparison) -> str:
    """Say in words how far a row is apart."""
    assert row.distance is not None
    return farther(row.distance.relative, row.floor.relative) if row.verdict != "equal" else "equal to the bit"


class ProgramFailedError(HypocenterError):
    """A program of the plan did not end as it should."""

    slug = "program-failed"


class ElsewhereError(HypocenterError):
    """Raised for a recording that only another machine can make. `fix` is the command to run there."""

    slug = "elsewhere"
    exit_code = 5
