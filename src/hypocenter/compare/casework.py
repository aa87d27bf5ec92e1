"""A Case from what the engine found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hypocenter.compare.cards import Deck
from hypocenter.compare.case import Case, PairedRow, Tensors, Values, no_tensors
from hypocenter.compare.comparison import Comparison, Divergence, Pair
from hypocenter.compare.judged import Judged
from hypocenter.compare.rows import StepRows
from hypocenter.nouns import StepRecord
from hypocenter.record.reader import RecordedRun


def case_of(
    runs: tuple[RecordedRun, RecordedRun], decks: tuple[Deck, Deck], comparison: Comparison, first: Divergence,
    scene: Judged, before: Judged | None, *, series: Callable[[Pair], tuple[PairedRow, ...]],
    tensors: Tensors = no_tensors,
) -> Case:  # fmt: skip
    """Everything that fits look at."""
    baseline, candidate = runs
    return Case(
        comparison=comparison,
        first=first,
        step=paired_rows(scene),
        before=paired_rows(before) if before is not None else (),
        facts=(baseline.facts(), candidate.facts()),
        runs=(baseline.run, candidate.run),
        places=(baseline.places, candidate.places),
        cards=(decks[0].by_spot, decks[1].by_spot),
        records=(_records(baseline), _records(candidate)),
        tensors=tensors,
        series=series,
    )


def paired_rows(judged: Judged) -> tuple[PairedRow, ...]:
    """The rows of a step as nouns, both sides."""
    sides = [_values(rows) for rows in (judged.aligned.baseline, judged.aligned.candidate)]
    return tuple(
        PairedRow(comparison=judged.row(at), baseline=sides[0][at], candidate=sides[1][at], stage=int(stage))
        for at, stage in enumerate(judged.aligned.stage)
    )


def _values(rows: StepRows) -> list[Values]:
    numbers = [_value(rows, at) for at in range(len(rows))]
    if rows.sketch is not None:
        for sketch, at in zip(rows.sketch, rows.sketched.tolist(), strict=True):
            numbers[at] = replace(numbers[at], sketch=np.asarray(sketch))
    return numbers


def _value(rows: StepRows, at: int) -> Values:
    counts = {name: int(column[at]) for name, column in rows.counts.items()}
    values = {name: float(column[at]) for name, column in rows.values.items()}
    return Values(
        dtype=str(rows.dtype[at]), n=counts["n"], n_nan=counts["n_nan"], n_posinf=counts["n_posinf"],
        n_neginf=counts["n_neginf"], min=values["min"], max=values["max"], absmax=values["absmax"],
        sum=values["sum"], sumsq=values["sumsq"], digest=int(rows.digest[at]) if rows.has_digest[at] else None,
    )  # fmt: skip


def _records(run: RecordedRun) -> dict[int, StepRecord]:
    return {record.step: record for rank, record in run.step_records() if rank == run.ranks[0]}
