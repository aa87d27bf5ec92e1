"""A recording in, its Diagnosis out: rules over rows, evidence judged, consequences folded, causes first.

Along a pipeline a bad value is handed on: a stage that received it has done nothing wrong.

Forward hands activations to later stages, backward gradients to earlier ones. A replay on one stage sees a bad input,
or a bad gradient that comes from nowhere, and can only say so; the stage that made it has evidence of its own.
"""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypocenter.detect import engine, group_engine
from hypocenter.detect.misuse import STILL, TRAINED
from hypocenter.detect.whole import Looked, doubts
from hypocenter.diagnose import deaths, verdicts
from hypocenter.diagnose.deaths import jobs_of
from hypocenter.diagnose.fold import fold
from hypocenter.diagnose.group import Folded
from hypocenter.diagnose.handed_on import from_before, from_behind, is_received
from hypocenter.diagnose.judged_evidence import JudgedEvidence, RunEvidence, judged_piece, load
from hypocenter.diagnose.laws import with_laws
from hypocenter.diagnose.panels import arrow, panels_of
from hypocenter.diagnose.ranks import together, with_device
from hypocenter.diagnose.rows import Recorded, extent, holds_values, scanned, steps_of
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.diagnose.spikes import with_course
from hypocenter.nouns import Diagnosis, Finding, Place, Reading, Status, StepRecord

_NONFINITE = ("HC104",)  # values that are not finite, of which a dump does not show what became
_PARTS = {"forward": "outputs", "backward": "gradients", "grad": "gradients", "param": "parameters"}


def diagnose(recorded: Recorded, plugins: Sequence[str] = ()) -> Diagnosis:
    """Say what is numerically wrong with a run, where it started and why.

    Args:
        recorded: an open recording (`hypocenter.record.reader.open_run`).
        plugins: rule and cause files or modules beside those installed. Those that the recording names are not
            imported: a recording is data, never a reason to run code.

    Returns:
        Findings with causes first. `healthy` is said only of a whole recording of a program that ended well
        (hypocenter.detect.whole).
    """
    verdicts.causes(plugins)
    checker = engine.Engine(engine.rules(plugins))
    found: list[Finding] = []
    records: dict[tuple[int, int], StepRecord] = {}
    over_ranks = group_engine.GroupEngine(group_engine.group_rules(plugins), len(recorded.ranks))
    by_step = RowsByStep()
    still: list[Still] = []
    for step in steps_of(recorded, checker.reads, over_ranks.reads, by_step):
        if step.record is not None:
            records[step.rank, step.step] = step.record
        still += still_in(step.readings)
        found += checker.feed(step.rank, step.step, step.record, step.readings)
    for panel in panels_of(by_step, records, ranks=recorded.ranks, places=recorded.places):
        found += over_ranks.feed(panel)
    jobs = jobs_of(recorded, records)
    for job in jobs:
        found += over_ranks.end(job)
    by_step.close()
    evidence, dead = deaths.apart(load(recorded.evidence_files(), recorded.directory))
    pieces = without_received(together(evidence), recorded.places)
    found = deaths.explained(found, dead)
    folded = with_device(fold(pieces.found, [f for f in found if f.code != deaths.CODE], records))
    folded = with_course(with_laws(folded), records)
    folded = deaths.with_deaths(folded, [f for f in found if f.code == deaths.CODE])
    status, why = _status(folded, pieces, records, recorded, doubts(jobs[-1], looked_at(recorded, records, still)))
    n_sites, n_rows = extent(recorded)
    return Diagnosis(
        run=recorded.run.name,
        status=status,
        findings=tuple(_placed(f.finding, recorded.places) for f in folded),
        why=why,
        n_steps=len({step for _, step in records}),
        n_ranks=len(recorded.ranks),
        n_sites=n_sites,
        n_rows=n_rows,
        notes=_notes(recorded, pieces),
    )


def _placed(finding: Finding, places: Mapping[int, Place]) -> Finding:
    place = places.get(finding.rank)
    return finding if place is None else replace(finding, coords=place.coords)


def _status(
    folded: Sequence[Folded],
    pieces: RunEvidence,
    records: dict[tuple[int, int], StepRecord],
    recorded: Recorded,
    doubts: tuple[str, ...],
) -> tuple[Status, tuple[str, ...]]:
    errors = [f for f in folded if f.finding.severity == "error"]
    if errors and not any(f.is_located or _is_followed(f.finding, recorded) for f in errors):
        return "cannot-tell", tuple(dict.fromkeys(_unexplained(f.finding, pieces, records) for f in errors))
    if any(f.finding.severity in ("error", "warning") for f in folded):
        return "findings", doubts if not errors else ()
    if not records:
        return "cannot-tell", ("no completed step was recorded", *doubts)
    if recorded.run.imported is not None and not holds_values(recorded):
        return "cannot-tell", (f"the dump of {recorded.run.imported.kind} holds no values",)
    off = [line for line in recorded.run.warnings if "switched off after an internal error" in line]
    if off:
        return "cannot-tell", tuple(off)
    unexplained = [f.finding for f in folded if f.finding.code in _NONFINITE]
    if recorded.run.imported is not None and unexplained and all(r.loss is None for r in records.values()):
        return "cannot-tell", tuple(
            dict.fromkeys(f"{f.title} (step {f.step}{f', {f.site}' if f.site else ''})" for f in unexplained)
        )
    return ("cannot-tell", doubts) if doubts else ("healthy", ())


def _is_followed(finding: Finding, recorded: Recorded) -> bool:
    """Whether inputs and outputs of a dump show where it began; there is no replay of it."""
    return recorded.run.imported is not None and finding.code == "HC104" and finding.confidence != "possible"


def _unexplained(finding: Finding, pieces: RunEvidence, records: dict[tuple[int, int], StepRecord]) -> str:
    where = f"step {finding.step}: {finding.title}"
    shown = next((e for e in pieces.found if e.finding.step == finding.step and e.finding.rank == finding.rank), None)
    if shown is not None and shown.evidence.why_not:
        return f"{where}; {shown.evidence.why_not}"
    record = records.get((finding.rank, finding.step))
    if record is not None and record.finding and shown is None:
        return f"{where}; its evidence {record.finding} is missing or cannot be read"
    return f"{where}; there was no replay of this step"


def _notes(recorded: Recorded, pieces: RunEvidence) -> tuple[str, ...]:
    broken = (*engine.CATALOGUE.broken, *group_engine.CATALOGUE.broken, *verdicts.CATALOGUE.broken)
    run = recorded.run
    dump = run.imported
    told = [f"imported from {dump.kind}: run.json tells what the dump does not hold"] if dump and dump.notes else []
    return tuple(
        dict.fromkeys(
            (
                *told,
                *recorded.problems,
                *recorded.attempts,
                *getattr(recorded, "rolled_up", ()),
                *run.warnings,
                *pieces.notes,
                *(f"{b.name} did not load: {b.error}" for b in broken),
            )
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """A count of parameters, as the end of a rank's run left it. `site`: TRAINED or STILL."""

    site: str
    n: int


def still_in(readings: Iterable[Reading]) -> list[Still]:
    """The counts among rows."""
    return [Still(site=r.site, n=int(r.summary.sum)) for r in readings if r.site in (TRAINED, STILL)]


def looked_at(recorded: Recorded, records: Mapping[tuple[int, int], StepRecord], still: Sequence[Still]) -> Looked:
    """What was seen of the run.

    Args:
        recorded: an open recording.
        records: its step records by (rank, step).
        still: counts of parameters.
    """
    found = list(records.values())
    at = ["losses"] if _any(r.loss for r in found) else []
    at += ["gradients"] if _any(r.grad_norm for r in found) else []
    if "gradients" not in at:
        at += _in_rows(recorded)
    return Looked(
        at=tuple(dict.fromkeys(at)),
        n_trained=sum(s.n for s in still if s.site == TRAINED),
        n_still=sum(s.n for s in still if s.site == STILL),
        lr_was_zero=bool(found) and all(r.lr == 0 for r in found),
    )


def _any(values: Iterable[float | None]) -> bool:
    return any(value is not None for value in values)


def _in_rows(recorded: Recorded) -> list[str]:
    """What rows tell of; of a dump any value is something."""
    if recorded.run.imported is not None:
        return ["values"] if holds_values(recorded) else []
    return [name for phase, name in _PARTS.items() if any(t.num_rows for _, t in scanned(recorded, _of(phase)))]


def _of(phase: str) -> Any:
    def where(table: Any) -> Any:
        import pyarrow.compute as pc

        return pc.equal(table["phase"], arrow(phase))

    return where


def without_received(pieces: RunEvidence, places: Mapping[int, Place]) -> RunEvidence:
    """The same pieces; those that show what another stage of their pipeline made say no more than that."""
    if not any(len(place.groups.get("pp", ())) > 1 for place in places.values()):
        return pieces
    found = [_told(piece, maker) if (maker := _maker(piece, pieces, places)) is not None else piece
             for piece in pieces.found]  # fmt: skip
    found.sort(key=lambda e: (e.finding.step, not e.is_located, e.finding.rank))
    return replace(pieces, found=tuple(found))


def _maker(piece: JudgedEvidence, pieces: RunEvidence, places: Mapping[int, Place]) -> int | None:
    """The rank of the stage, upstream of what the piece shows, that the bad value came from."""
    rank, step = piece.finding.rank, piece.finding.step
    stages = places[rank].groups.get("pp", ()) if rank in places else ()
    if rank not in stages or not (from_before(piece.evidence) or from_behind(piece.evidence)):
        return None
    here = stages.index(rank)
    upstream = stages[:here] if from_before(piece.evidence) else stages[here + 1 :]
    if is_received(piece.evidence):  # of ranks that hold several stages each may be upstream of the other
        upstream = [each for each in stages if each != rank]
    others = (e for e in pieces.found if e.finding.step <= step and e.finding.rank in upstream and e.is_located)
    return next((e.finding.rank for e in others if not from_before(e.evidence) and not from_behind(e.evidence)), None)


def _told(piece: JudgedEvidence, maker: int) -> JudgedEvidence:
    why_not = f"the value came from rank {maker}, another stage of the pipeline"
    evidence = replace(piece.evidence, origin=None, leaf=None, path=(), killed=(), why_not=why_not, nan_maker=None)
    return judged_piece(evidence, rank=piece.finding.rank, bundle=piece.finding.bundle)
