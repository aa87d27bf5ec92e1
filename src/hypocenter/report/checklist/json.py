"""`hypocenter.checklist/1`: the answer as it is written, made from a Checklist."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from hypocenter import json_answer
from hypocenter.checklist.checklist import Checklist, Importance, Remark, Status, Value, Verdict


class Said(Struct, frozen=True, kw_only=True):
    """What one side says of an item, and where."""

    value: Value
    spelled: Annotated[str, Meta(description="as it stands in the file")]
    where: Annotated[str, Meta(description="file:line")]
    assumed: Annotated[str | None, Meta(description="whose default it is, when nobody said it")]
    derived: Annotated[str | None, Meta(description="how it was computed from others")]
    unresolved: Annotated[str | None, Meta(description="why its value cannot be told")]


class Item(Struct, frozen=True, kw_only=True):
    """One item on both sides."""

    item: str
    title: str
    group: str
    unit: str
    baseline: Value
    candidate: Value
    verdict: Verdict
    severity: Annotated[Importance, Meta(description="how much it matters if different")]
    why: str
    fix: str
    assumed: Annotated[bool, Meta(description="a side's value is a default that nobody wrote down")]
    baseline_setting: Said | None
    candidate_setting: Said | None
    remarks: Annotated[
        tuple[Remark, ...], Meta(description="worth saying even where both agree; of no influence on the status")
    ]


class Kinds(Struct, frozen=True, kw_only=True):
    """Names of readers, of both sides."""

    baseline: tuple[str, ...]
    candidate: tuple[str, ...]


class Unknown(Struct, frozen=True, kw_only=True):
    """Keys of both sides."""

    baseline: tuple[Said, ...]
    candidate: tuple[Said, ...]


class Compared(Struct, frozen=True, kw_only=True):
    """Two configurations compared item by item."""

    schema: Literal["hypocenter.checklist/1"] = "hypocenter.checklist/1"
    status: Status
    sentence: Annotated[str, Meta(description="the answer in one sentence")]
    baseline: str
    candidate: str
    kinds: Annotated[Kinds, Meta(description="names of the readers that read a side")]
    rows: Annotated[tuple[Item, ...], Meta(description="differences first, the weighty before the light")]
    unknown: Annotated[Unknown, Meta(description="keys that no table knows")]
    notes: tuple[str, ...]
    samples: tuple[str, ...]


def render(found: Checklist) -> str:
    """Return the answer as indented JSON with a final newline; nothing is cut."""
    return json_answer.to_json(written(found))


def written(found: Checklist) -> Compared:
    """Return the answer in the form in which it is written."""
    return Compared(
        status=found.status, sentence=found.sentence, baseline=found.baseline, candidate=found.candidate,
        kinds=Kinds(baseline=found.kinds_baseline, candidate=found.kinds_candidate),
        rows=_as(tuple[Item, ...], found.rows),
        unknown=Unknown(
            baseline=_as(tuple[Said, ...], found.unknown_baseline),
            candidate=_as(tuple[Said, ...], found.unknown_candidate),
        ),
        notes=found.notes, samples=found.samples,
    )  # fmt: skip


def _as(kind: Any, found: object) -> Any:
    """Convert to the type of what is written, which has fewer fields."""
    return msgspec.convert(found, kind, from_attributes=True)
