"""The answer of `hypocenter doctor`: checks and a status. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from hypocenter.nouns import Count

CheckStatus = Literal["ok", "warning", "problem", "cannot-tell", "not-applicable"]
Status = Literal["healthy", "problems", "cannot-tell"]
Area = Literal["toolkits", "settings", "communication", "arithmetic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    code: Annotated[str, Meta(description="stable: toolkit.nvcc-matches-torch, setting.NCCL_ALGO, comm.all-reduce")]
    area: Area
    title: str
    status: CheckStatus
    what: Annotated[str, Meta(description="what was found, one sentence")]
    why: Annotated[str, Meta(description="why it matters; for cannot-tell, why it could not be checked")] = ""
    fix: Annotated[tuple[str, ...], Meta(description="lines to paste into a shell")] = ()
    rank: Annotated[int | None, Meta(description="null: the machine, or all ranks")] = None
    host: str | None = None
    evidence: Annotated[dict[str, Any], Meta(description="measured values")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether a machine, or a job, is fit to train: toolkits, settings, communication, arithmetic."""

    schema: Literal["hypocenter.doctor/1"] = "hypocenter.doctor/1"
    status: Annotated[
        Status,
        Meta(
            description="healthy: no check is a problem (warnings stay healthy); cannot-tell: nothing of an area that "
            "was asked for could be checked. Exit codes 0, 1, 5."
        ),
    ]
    sentence: str
    ranks: Annotated[int, Meta(ge=1)] = 1
    missing: Annotated[tuple[Count, ...], Meta(description="ranks that never answered")] = ()
    checks: Annotated[tuple[Check, ...], Meta(description="problems first")] = ()
    notes: tuple[str, ...] = ()
