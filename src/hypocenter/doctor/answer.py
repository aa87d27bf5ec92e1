"""The answer of `hypocenter doctor`: checks and a status. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

CheckStatus = Literal["ok", "warning", "problem", "cannot-tell", "not-applicable"]
Status = Literal["healthy", "problems", "cannot-tell"]
Area = Literal["toolkits", "settings", "communication", "arithmetic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    code: str  # stable, for filters: "toolkit.nvcc-matches-torch", "comm.all-reduce"
    area: Area
    title: str
    status: CheckStatus
    what: str  # what was found, with the numbers, one sentence
    why: str = ""  # why it matters; for `cannot-tell`, why it could not be checked
    fix: tuple[str, ...] = ()  # lines to paste into a shell; empty when there is nothing to do
    rank: int | None = None  # None: the machine, or all ranks
    host: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)  # measured values, plain data


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All checks, problems first. `healthy` when no check is a problem; warnings alone stay healthy, and are shown.

    `cannot-tell` when nothing that was asked for could be checked.
    """

    status: Status
    sentence: str
    checks: tuple[Check, ...] = ()
    n_ranks: int = 1
    missing: tuple[int, ...] = ()  # ranks that never answered
    notes: tuple[str, ...] = ()
