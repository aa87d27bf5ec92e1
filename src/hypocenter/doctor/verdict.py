"""What one check answers: a status and a sentence, why it matters, the lines to paste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter.doctor.answer import CheckStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A Check without what the catalogue adds: code, area, title, host."""

    status: CheckStatus
    what: str
    why: str = ""
    fix: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)


def ok(what: str, **evidence: Any) -> Verdict:
    """All is well, or there is nothing more to say than the sentence."""
    return Verdict(status="ok", what=what, evidence=evidence)


def warning(what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """It may hurt, but need not: shown, and the machine stays healthy."""
    return Verdict(status="warning", what=what, why=why, fix=tuple(fix), evidence=evidence)


def problem(what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """Something will fail or compute other numbers."""
    return Verdict(status="problem", what=what, why=why, fix=tuple(fix), evidence=evidence)


def graver(is_problem: bool, what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """A problem where it will bite, else a warning."""
    return (problem if is_problem else warning)(what, why, fix, **evidence)


def cannot_tell(what: str, why: str, fix: Sequence[str] = (), **evidence: Any) -> Verdict:
    """It should have been checked and could not be."""
    return Verdict(status="cannot-tell", what=what, why=why, fix=tuple(fix), evidence=evidence)


def not_applicable(why: str) -> Verdict:
    """There is nothing here to check."""
    return Verdict(status="not-applicable", what=why)
