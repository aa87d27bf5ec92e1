"""What `hypocenter spikes` answers: `hypocenter.spikes/1`, from the steps' records and the evidence of a recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hypocenter.detect.spikes import Series
from hypocenter.diagnose.judged_evidence import JudgedEvidence
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import what_jumped
from hypocenter.nouns import Source, StepRecord

Status = Literal["healthy", "jumped"]
OF_NORM = "the gradient's norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A step at which the loss or the gradient's norm jumped. Steps, ranks and rows count from 0."""

    step: int
    rank: int
    of: Annotated[str, Meta(description="What jumped: the loss, or the gradient's norm.")]
    value: float
    usual: Annotated[float, Meta(description="Median of the values before it.")]
    severity: Annotated[Literal["warning", "note"], Meta(description="warning: a place or samples are proven.")]
    cause: Annotated[str | None, Meta(description="Of the finding; null: nothing was proven.")] = None
    title: str = ""
    site: str | None = None
    op: str | None = None
    param: str | None = None
    source: Source | None = None
    samples: Annotated[tuple[int, ...], Meta(description="Rows of the batch.")] = ()
    dataset_indices: Annotated[tuple[int, ...], Meta(description="Of these samples; empty: not known.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The jumps of a run."""

    SPELLS_OUT: ClassVar = False
    schema: Literal["hypocenter.spikes/1"] = "hypocenter.spikes/1"
    status: Status
    run: str = ""
    steps: Annotated[int, Meta(description="Steps that were looked at.")] = 0
    spikes: tuple[Spike, ...] = ()

    @property
    def to_skip(self) -> tuple[int, ...]:
        """Data set indices of all samples that made something jump, in order."""
        return tuple(sorted({index for spike in self.spikes for index in spike.dataset_indices}))


def answer(run: str, records: Records, pieces: Sequence[JudgedEvidence]) -> Answer:
    """Return the jumps of a recording, one per step: that of the rank on which most is proven.

    Args:
        run: the recording's name.
        records: its step records.
        pieces: its evidence.
    """
    found: dict[int, list[Spike]] = defaultdict(list)
    for piece in pieces:
        if piece.evidence.trigger == "spike":
            found[piece.finding.step].append(_proven(piece))
    for rank in records.by_rank:
        for spike in _jumps(rank, records.of_rank(rank)):
            found[spike.step].append(spike)
    chosen = tuple(min(found[step], key=_order) for step in sorted(found))
    return Answer(status="jumped" if chosen else "healthy", run=run, steps=len(records.steps()), spikes=chosen)


def _order(spike: Spike) -> tuple[bool, bool, bool, int]:
    return spike.severity != "warning", spike.cause is None, not spike.samples, spike.rank


def _proven(piece: JudgedEvidence) -> Spike:
    evidence, f = piece.evidence, piece.finding
    severity = "warning" if f.severity == "warning" else "note"
    return Spike(
        step=f.step, rank=f.rank, of=what_jumped(evidence),
        value=fact(evidence, "now") or 0.0, usual=fact(evidence, "usual") or 0.0, severity=severity, cause=f.cause,
        title=f.title, site=f.site, op=f.op, param=f.param, source=f.source, samples=f.samples,
        dataset_indices=f.dataset_indices,
    )  # fmt: skip


def _jumps(rank: int, records: Iterable[StepRecord]) -> Iterable[Spike]:
    """Yield the jumps as the rule finds them (HC401)."""
    losses, norms = Series(), Series()
    for record in records:
        loss, norm = losses.add(record.loss, record.n_microbatches), norms.add(record.grad_norm)
        jump = loss or norm
        if jump is not None:
            of = "the loss" if loss is not None else OF_NORM
            yield Spike(step=record.step, rank=rank, of=of, value=jump.value, usual=jump.usual, severity="note")


def place_of(spike: Spike) -> str:
    """Return "step.py:12", the name of a parameter, or of a module."""
    if spike.source is not None:
        return f"{spike.source.file}:{spike.source.line}"
    return spike.param or spike.site or ""
