"""The answer of `hypocenter checklist`: rows and a status. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from hypocenter.checklist.configuration import Setting, Value

Verdict = Literal["same", "equivalent", "different", "only-baseline", "only-candidate", "cannot-tell", "not-set"]
# `not-set`: neither side says it, and neither side's default is known
Importance = Literal["error", "warning", "note"]
Status = Literal["same", "different", "cannot-tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What is worth saying of a side even where both agree: dropout is on."""

    side: Annotated[str, Meta(extra_json_schema={"enum": ("baseline", "candidate", "baseline and candidate")})]
    severity: Importance
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One item on both sides."""

    item: str  # canonical key, or "data.ids_in_range" for a check on the batches
    title: str  # "number of transformer layers"
    group: str  # structure, moe, optimizer, weights, precision, parallel, data, other
    baseline: Value
    candidate: Value
    verdict: Verdict
    severity: Importance  # how much it matters if different
    why: str  # one sentence: why it is equivalent, or what a difference does
    unit: str = ""
    fix: str = ""  # what to change, as something to type
    baseline_setting: Setting | None = None
    candidate_setting: Setting | None = None
    remarks: tuple[Remark, ...] = ()  # of no influence on the status

    @property
    def assumed(self) -> bool:
        """Whether a side's value is a default that nobody wrote down."""
        return any(s is not None and s.assumed for s in (self.baseline_setting, self.candidate_setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All rows, the ones that matter first."""

    status: Status
    sentence: str  # the answer in one sentence
    baseline: str  # labels
    candidate: str
    rows: tuple[Row, ...] = ()
    unknown_baseline: tuple[Setting, ...] = ()
    unknown_candidate: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    kinds_baseline: tuple[str, ...] = ()  # readers that read it
    kinds_candidate: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()  # a few samples of the batches, decoded
