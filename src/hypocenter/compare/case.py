"""What a fit may look at: the first difference, rows around it on both sides, what both programs are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hypocenter.compare.cards import RunCards
from hypocenter.compare.comparison import Comparison, Divergence, Pair, RowComparison, SiteCard, Spot
from hypocenter.compare.judged_step import JudgedStep
from hypocenter.compare.rows import StepRows
from hypocenter.nouns import Phase, Place, Run, StepRecord
from hypocenter.record.facts_file import Facts, ModuleFacts
from hypocenter.record.reader import RecordedRun

Array = npt.NDArray[np.float64]
Tensors = Callable[["PairedRow"], "tuple[Array, Array] | None"]


@dataclass(frozen=True, kw_only=True)
class Values:
    """What was recorded of one side of a row."""

    dtype: str = ""
    n: int = 0
    n_nan: int = 0
    n_posinf: int = 0
    n_neginf: int = 0
    min: float = float("nan")  # NaN: no finite element
    max: float = float("nan")
    absmax: float = 0.0
    sum: float = 0.0
    sumsq: float = 0.0
    digest: int | None = None
    sketch: npt.NDArray[np.float32] | None = None  # K * K, summary.sketch

    @property
    def norm(self) -> float:
        """L2 norm."""
        return float(np.sqrt(self.sumsq))


@dataclass(frozen=True, kw_only=True)
class PairedRow:
    """One paired row: both sides, how far they are apart, and the verdict."""

    comparison: RowComparison
    baseline: Values
    candidate: Values
    stage: int  # its place in STAGES

    @property
    def pair(self) -> Pair:
        """The pair it is a row of."""
        return self.comparison.pair

    @property
    def spot(self) -> Spot:
        """The baseline's spot; the first one of a fused pair."""
        return self.pair.baseline[0]

    @property
    def candidate_spot(self) -> Spot:
        """The candidate's spot; the first one of a fused pair."""
        return self.pair.candidate[0]

    @property
    def agrees(self) -> bool:
        """Whether the sides are equal or within noise."""
        return self.comparison.verdict in ("equal", "within-noise")


def no_tensors(row: PairedRow) -> tuple[Array, Array] | None:
    """Return None: the `tensors` of a case whose recordings hold no values."""
    return None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A difference to be explained.

    Attributes:
        comparison: the answer so far, without cause.
        first: the culprit; `first.row` is its row.
        step, before: all paired rows of the step of the row (of an update: the step after it), and of the step compared
            before it, each in the order in which a difference travels.
        facts, runs, places: of (baseline, candidate).
        cards: of (baseline, candidate): shape, class and histogram of each spot at its first step.
        records: of (baseline, candidate): step records of the lowest rank, by step.
        tensors: gives the values of a row on both sides in float64 when both recorded them, else None.
        series: gives all paired rows of a pair over all compared steps; reads the recordings again.
    """

    comparison: Comparison
    first: Divergence
    step: tuple[PairedRow, ...] = ()
    before: tuple[PairedRow, ...] = ()
    facts: tuple[Facts | None, Facts | None] = (None, None)
    runs: tuple[Run, Run]
    places: tuple[Mapping[int, Place], Mapping[int, Place]] = field(default_factory=lambda: ({}, {}))
    cards: tuple[Mapping[Spot, SiteCard], Mapping[Spot, SiteCard]] = field(default_factory=lambda: ({}, {}))
    records: tuple[Mapping[int, StepRecord], Mapping[int, StepRecord]] = field(default_factory=lambda: ({}, {}))
    tensors: Tensors = no_tensors
    series: Callable[[Pair], tuple[PairedRow, ...]] = lambda pair: ()

    @cached_property
    def row(self) -> PairedRow | None:
        """The row of the culprit with both sides; None when the culprit has no row."""
        wanted = self.first.row
        if wanted is None:
            return None
        return next(
            (
                row
                for row in self.step
                if row.pair is wanted.pair
                and (row.comparison.microbatch, row.comparison.order) == (wanted.microbatch, wanted.order)
            ),
            None,
        )

    def rows(self, *, phase: Phase | None = None, site: str | None = None, port: str = "") -> list[PairedRow]:
        """Return the rows of the step that have this phase, this site in the baseline and a port that begins so."""
        return [row for row in self.step if _fits(row, phase, site, port)]

    def rows_before(self, *, phase: Phase | None = None, site: str | None = None, port: str = "") -> list[PairedRow]:
        """Return the same rows as `rows`, but of the step that was compared before."""
        return [row for row in self.before if _fits(row, phase, site, port)]

    @cached_property
    def inputs(self) -> list[PairedRow]:
        """The culprit's recorded inputs: `in[*]` of a forward, `grad_out[*]` of a backward; same call and batch."""
        row = self.row
        if row is None:
            return []
        port = {"forward": "in", "backward": "grad_out"}.get(row.spot.phase)
        if port is None:
            return []
        found = self.rows(phase=row.spot.phase, site=self.first.site, port=port)
        batch = row.comparison.microbatch
        return [one for one in found if one.comparison.microbatch == batch and one.spot.call == row.spot.call]

    @property
    def inputs_agree(self) -> bool:
        """Whether what the culprit was computed from agrees, as far as it was recorded."""
        return self.first.inputs_agree is not False

    @cached_property
    def modules(self) -> tuple[ModuleFacts | None, ModuleFacts | None]:
        """Facts of the culprit module on both sides; of a parameter the module that it belongs to."""
        sites = self.first.site, self.first.candidate_site
        return self.module(sites[0], side=0), self.module(sites[1], side=1)

    def module(self, site: str, *, side: int) -> ModuleFacts | None:
        """Return the facts of a module, or of the module of a parameter; side 0 is the baseline, 1 the candidate."""
        known = self._modules[side]
        return known.get(site) or known.get(site.rpartition(".")[0])

    @cached_property
    def _modules(self) -> tuple[dict[str, ModuleFacts], dict[str, ModuleFacts]]:
        of = [{module.path: module for module in facts.modules} if facts else {} for facts in self.facts]
        return of[0], of[1]

    def card(self, row: PairedRow, *, side: int) -> SiteCard | None:
        """Return the card of a row's spot on one side: its shape, class, and histogram at the first step."""
        return self.cards[side].get(row.candidate_spot if side else row.spot)


def _fits(row: PairedRow, phase: Phase | None, site: str | None, port: str) -> bool:
    spot = row.spot
    return (phase is None or spot.phase == phase) and (site is None or spot.site == site) and spot.port.startswith(port)


def case_of(
    runs: tuple[RecordedRun, RecordedRun], run_cards: tuple[RunCards, RunCards], comparison: Comparison,
    first: Divergence, step: JudgedStep, before: JudgedStep | None, *, series: Callable[[Pair], tuple[PairedRow, ...]],
    tensors: Tensors = no_tensors,
) -> Case:  # fmt: skip
    """Put together everything that fits may look at."""
    baseline, candidate = runs
    return Case(
        comparison=comparison,
        first=first,
        step=paired_rows(step),
        before=paired_rows(before) if before is not None else (),
        facts=(baseline.facts(), candidate.facts()),
        runs=(baseline.run, candidate.run),
        places=(baseline.places, candidate.places),
        cards=(run_cards[0].by_spot, run_cards[1].by_spot),
        records=(_records(baseline), _records(candidate)),
        tensors=tensors,
        series=series,
    )


def paired_rows(judged: JudgedStep) -> tuple[PairedRow, ...]:
    """Return each row of a step with the values of both sides."""
    rows = judged.rows(range(len(judged)))
    sides = [_values(side) for side in (judged.aligned.baseline, judged.aligned.candidate)]
    return tuple(
        PairedRow(comparison=row, baseline=mine, candidate=other, stage=int(stage))
        for row, mine, other, stage in zip(rows, *sides, judged.aligned.stage, strict=True)
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
