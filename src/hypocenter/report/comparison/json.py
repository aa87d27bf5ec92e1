"""`hypocenter.comparison/1`: the answer as it is written, made from a Comparison."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from hypocenter import json_answer
from hypocenter.compare.comparison import (
    Amplification,
    Comparison,
    Depth,
    Divergence,
    Fit,
    FloorSource,
    LayoutKind,
    RowComparison,
    RowVerdict,
    SiteCard,
    Spot,
    Verdict,
)
from hypocenter.nouns import CAUSES, Confidence, Phase, Source
from hypocenter.report.comparison.ranking import ranked

suffix = ".json"
T = TypeVar("T")


class Sides(Struct, Generic[T], frozen=True, kw_only=True):
    """The same of both sides."""

    baseline: T
    candidate: T


class Card(Struct, frozen=True, kw_only=True):
    """A spot that only one side has."""

    phase: Phase
    site: str
    port: str
    call: int
    module: str
    dtype: str
    shape: tuple[int, ...]


class Row(Struct, frozen=True, kw_only=True):
    """One pair of spots at one step and micro-batch.

    error: relative, of the L2 norm, ‖candidate - baseline‖ / ‖baseline‖; at depth summary a lower bound.
    """

    baseline: Annotated[tuple[Spot, ...], Meta(min_length=1)]
    candidate: Annotated[tuple[Spot, ...], Meta(min_length=1)]
    by: str
    certainty: Annotated[float, Meta(ge=0, le=1)]
    why: str
    layout: LayoutKind
    step: int
    since: int | None
    microbatch: int
    order: int
    verdict: RowVerdict
    depth: Depth | None
    error: float | None
    error_low: float | None
    error_high: float | None
    cosine: float | None
    scale: float | None
    details: dict[str, float]
    floor: float
    floor_source: FloorSource
    floor_samples: int
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


class First(Struct, frozen=True, kw_only=True):
    """The first place, in execution order, whose inputs agree and whose output does not.

    site: in the baseline's names; of code between two calls, the module whose own code it is.
    """

    step: int
    microbatch: int
    phase: Phase
    site: str
    port: str
    error: float
    floor: float
    candidate_site: str
    between: tuple[str, str] | None
    inputs_agree: bool | None
    source: Source | None
    row: Row | None


class Diff(Struct, frozen=True, kw_only=True):
    """Where two runs that should match do not, beyond the noise."""

    schema: Literal["hypocenter.comparison/1"] = "hypocenter.comparison/1"
    status: Verdict
    sentence: str
    baseline: str
    candidate: str
    first: First | None
    cause: Annotated[str | None, Meta(extra_json_schema={"enum": (*CAUSES, None)})]
    confidence: Confidence
    fit: Fit | None
    why: tuple[str, ...]
    matched: int
    unmatched: Sides[int]
    matched_by: dict[str, int]
    unmatched_sites: Sides[tuple[Card, ...]]
    depth: Depth | None
    floor_source: FloorSource
    budget: Annotated[float, Meta(gt=0)]
    steps: int
    rows: int
    differing: int
    sites: Annotated[
        tuple[Row, ...], Meta(description="The worst row of each pair, the culprit's first, then the worst.")
    ]
    amplifications: tuple[Amplification, ...]
    notes: tuple[str, ...]


def render(found: Comparison) -> str:
    """Return indented JSON with a final newline; nothing is cut, a number that is not finite is a string."""
    return json_answer.to_json(written(found))


def written(found: Comparison) -> Diff:
    """Return the answer in the form in which it is written."""
    matching = found.matching
    one, other = matching.unmatched_baseline, matching.unmatched_candidate
    return Diff(
        status=found.status, sentence=found.sentence, baseline=found.baseline, candidate=found.candidate,
        first=_first(found.first) if found.first is not None else None, cause=found.cause, confidence=found.confidence,
        fit=found.fit, why=found.why, matched=len(matching.pairs),
        unmatched=Sides(baseline=len(one), candidate=len(other)),
        matched_by=dict(Counter(pair.by for pair in matching.pairs)),
        unmatched_sites=Sides(baseline=tuple(map(_card, one)), candidate=tuple(map(_card, other))), depth=found.depth,
        floor_source=found.floor_source, budget=found.budget, steps=found.n_steps, rows=found.n_rows,
        differing=found.n_differ, sites=tuple(map(_row, ranked(found))), amplifications=found.amplifications,
        notes=found.notes,
    )  # fmt: skip


def _first(first: Divergence) -> First:
    return First(
        step=first.step, microbatch=first.microbatch, phase=first.phase, site=first.site, port=first.port,
        error=first.error, floor=first.floor, candidate_site=first.candidate_site, between=first.between,
        inputs_agree=first.inputs_agree, source=first.source, row=_row(first.row) if first.row is not None else None,
    )  # fmt: skip


def _row(row: RowComparison) -> Row:
    pair, distance = row.pair, row.distance
    return Row(
        baseline=pair.baseline, candidate=pair.candidate, by=pair.by, certainty=pair.certainty, why=pair.why,
        layout=pair.layout.kind, step=row.step, since=row.since, microbatch=row.microbatch, order=row.order,
        verdict=row.verdict, depth=distance.depth if distance is not None else None,
        error=distance.relative if distance is not None else None,
        error_low=distance.low if distance is not None else None,
        error_high=distance.high if distance is not None else None,
        cosine=distance.cosine if distance is not None else None,
        scale=distance.scale if distance is not None else None,
        details=distance.details if distance is not None else {}, floor=row.floor.relative,
        floor_source=row.floor.source, floor_samples=row.floor.n_samples, dtypes=row.dtypes, shapes=row.shapes,
    )  # fmt: skip


def _card(card: SiteCard) -> Card:
    spot = card.spot
    return Card(
        phase=spot.phase, site=spot.site, port=spot.port, call=spot.call, module=card.module, dtype=card.dtype,
        shape=card.shape,
    )  # fmt: skip
