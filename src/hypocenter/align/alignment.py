"""The answer of `hypocenter align`: a verdict for each stage. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from hypocenter.nouns import Confidence

StageVerdict = Literal["passed", "failed", "cannot-tell", "skipped", "not-run"]
Status = Literal["aligned", "stopped", "cannot-tell"]
STAGES = (
    "checklist", "preparation", "forward", "backward", "optimizer", "frozen", "noise floor", "long run", "widening",
)  # fmt: skip
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
