"""The answer of `hypocenter align`: a verdict for each stage. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

StageVerdict = Literal["passed", "failed", "cannot-tell", "skipped", "not-run"]
Status = Literal["aligned", "stopped", "cannot-tell"]
STAGES = (
    "checklist", "preparation", "forward", "backward", "optimizer", "frozen", "noise floor", "long run", "widening",
)  # fmt: skip
# their numbers, 0 to 8, are those of the document that the procedure is from


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What one stage found."""

    stage: int  # 0 to 8
    name: str  # of STAGES
    verdict: StageVerdict
    sentence: str  # what was compared and what came out, with the numbers
    step: int | None = None
    phase: str | None = None
    site: str | None = None  # module or parameter that is to blame, if one is
    cause: str | None = None  # of the closed vocabulary, as in a comparison
    confidence: str | None = None
    why: tuple[str, ...] = ()  # evidence
    next: tuple[str, ...] = ()  # what to do now, as commands where there are any
    runs: tuple[str, ...] = ()  # recordings it rests on, relative to the plan's folder
    figures: dict[str, Any] = field(default_factory=dict)  # numbers and curves for the page, plain data
    seconds: float = 0.0
    fingerprint: str = ""  # of what it rests on: a stage is done again when this changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """All stages of a plan, as far as they went."""

    status: Status
    sentence: str
    plan: str
    stage: int | None  # the stage that stopped it; None when all passed
    stages: tuple[StageResult, ...] = ()
    notes: tuple[str, ...] = ()
