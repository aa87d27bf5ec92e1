"""The answer of `hypocenter doctor`: checks and a status. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from hypocenter.nouns import Count

CheckStatus = Literal["ok", "warning", "problem", "cannot-tell", "not-applicable"]
Status = Literal["healthy", "problems", "cannot-tell"]
Area = Literal["itself", "toolkits", "settings", "communication", "arithmetic"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A Check without what the catalogue adds: code, area, title, host."""

    status: CheckStatus
    what: str
    why: str = ""
    fix: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)


def ok(what: str, **evidence: Any) -> Verdict:
    """Return the verdict that all is well, or that there is nothing more to say than the sentence."""
    return Verdict(status="ok", what=what, evidence=evidence)


def warning(what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """Return the verdict that something may hurt, but need not: it is shown, and the machine stays healthy."""
    return Verdict(status="warning", what=what, why=why, fix=tuple(fix), evidence=evidence)


def problem(what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """Return the verdict that something will fail or compute other numbers."""
    return Verdict(status="problem", what=what, why=why, fix=tuple(fix), evidence=evidence)


def graver(is_problem: bool, what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """Return a problem where `is_problem`, that is where it will do harm; else a warning."""
    return (problem if is_problem else warning)(what, why, fix, **evidence)


def cannot_tell(what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """Return the verdict that something should have been checked and could not be."""
    return Verdict(status="cannot-tell", what=what, why=why, fix=tuple(fix), evidence=evidence)


def not_applicable(why: str) -> Verdict:
    """Return the verdict that there is nothing here to check."""
    return Verdict(status="not-applicable", what=why)
