"""A recording in, its Diagnosis out: rules over rows, evidence judged, consequences folded, causes first.

Along a pipeline a bad value is handed on: a stage that received it has done nothing wrong.

Forward hands activations to later stages, backward gradients to earlier ones. A replay on one stage sees a bad input,
or a bad gradient that comes from nowhere, and can only say so; the stage that made it has evidence of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.compute as pc

from hypocenter.detect import engine, group_engine
from hypocenter.detect.misuse import STILL, TRAINED
from hypocenter.detect.replica_verdicts import GRADIENTS_AGREE
from hypocenter.detect.spikes import Series
from hypocenter.detect.whole import Looked, doubts
from hypocenter.diagnose import deaths, verdicts
from hypocenter.diagnose.deaths import jobs_of
from hypocenter.diagnose.fold import SPIKE, fold
from hypocenter.diagnose.group import Folded, told_under
from hypocenter.diagnose.handed_on import from_before, from_behind, is_received
from hypocenter.diagnose.judged_evidence import JudgedEvidence, RunEvidence, judged_piece, load
from hypocenter.diagnose.over_ranks import found_over_ranks, rules_over_ranks
from hypocenter.diagnose.panels import arrow
from hypocenter.diagnose.partial import get_ready, holds_values, look_at_job
from hypocenter.diagnose.ranks import together, with_device
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.spike_words import BEFORE, RISE, rose
from hypocenter.in_words import counted
from hypocenter.nouns import Diagnosis, Finding, Place, Remedy, Status, StepRecord
from hypocenter.record.reader import RecordedRun

_NONFINITE = ("HC104",)  # values that are not finite, of which a dump does not show what became
_PARTS = {"forward": "outputs", "backward": "gradients", "grad": "gradients", "param": "parameters"}
_REDUCE = Remedy(
    action="reduce-gradients",
    text="look at what runs otherwise from this step on: call the model through its DDP wrapper, leave no_sync before "
    "the last micro-batch, reduce on all ranks",
)
LAWS = ("HC232", "HC308", "HC309", "HC235", "HC231", "HC233")  # the one that says most first
REPLICAS = "HC301"  # they go apart after what a collective gave back
_KINDS = frozenset({"comm", "desync", "hardware", "exploding", "spike", "nonfinite", "loss-scale-collapse", "config"})


_OF_RANKS = frozenset({"HC308", "HC309"})
_SCHEDULE = "HC214"  # of which no gradient comes
_APART = frozenset({"desync", "hardware"})
LATER = 16  # steps, of what is seen only when replicas are compared


def diagnose(recorded: RecordedRun, plugins: Sequence[str] = ()) -> Diagnosis:
    """Say what is numerically wrong with a run, where it started and why.

    Args:
        recorded: an open recording (`hypocenter.record.reader.open_run`).
        plugins: rule and cause files or modules beside those installed. Those that the recording names are not
            imported: a recording is data, never a reason to run code.

    Returns:
        Findings with causes first. `healthy` is said only of a whole recording of a program that ended well
        (hypocenter.detect.whole).
    """
    get_ready(recorded, tuple(plugins))
    verdicts.causes(plugins)
    seen = found_in(recorded, plugins)
    found, records, still = seen.findings, seen.records, seen.still
    jobs, over_ranks = jobs_of(recorded, records), rules_over_ranks(recorded, plugins)
    for job in jobs:
        found += over_ranks.end(job)
    evidence, dead = deaths.apart(load(recorded.evidence_files(), recorded.directory))
    pieces = without_received(together(evidence), recorded.places)
    found = deaths.explained(found, dead)
    folded = with_device(fold(pieces.found, [f for f in found if f.code != deaths.CODE], records))
    folded = with_course(with_laws(folded), records)
    folded = deaths.with_deaths(folded, [f for f in found if f.code == deaths.CODE])
    status, why = _status(folded, pieces, records, recorded, doubts(jobs[-1], looked_at(recorded, records, still)))
    return Diagnosis(
        run=recorded.run.name,
        status=status,
        findings=tuple(_placed(f.finding, recorded.places) for f in folded),
        why=why,
        n_steps=len(records.steps()),
        n_ranks=len(recorded.ranks),
        n_sites=len(recorded.site_names),
        n_rows=recorded.n_rows,
        notes=_notes(recorded, pieces),
    )


def _placed(finding: Finding, places: Mapping[int, Place]) -> Finding:
    place = places.get(finding.rank)
    return finding if place is None else replace(finding, coords=place.coords)


def _status(
    folded: Sequence[Folded],
    pieces: RunEvidence,
    records: Records,
    recorded: RecordedRun,
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
    if recorded.run.imported is not None and unexplained and not records.have("loss"):
        return "cannot-tell", tuple(
            dict.fromkeys(f"{f.title} (step {f.step}{f', {f.site}' if f.site else ''})" for f in unexplained)
        )
    return ("cannot-tell", doubts) if doubts else ("healthy", ())


def _is_followed(finding: Finding, recorded: RecordedRun) -> bool:
    """Whether inputs and outputs of a dump show where it began; there is no replay of it."""
    return recorded.run.imported is not None and finding.code == "HC104" and finding.confidence != "possible"


def _unexplained(finding: Finding, pieces: RunEvidence, records: Records) -> str:
    where = f"step {finding.step}: {finding.title}"
    shown = next((e for e in pieces.found if e.finding.step == finding.step and e.finding.rank == finding.rank), None)
    if shown is not None and shown.evidence.why_not:
        return f"{where}; {shown.evidence.why_not}"
    record = records.get(finding.rank, finding.step)
    if record is not None and record.finding and shown is None:
        return f"{where}; its evidence {record.finding} is missing or cannot be read"
    return f"{where}; there was no replay of this step"


def _notes(recorded: RecordedRun, pieces: RunEvidence) -> tuple[str, ...]:
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
                *recorded.rolled_up,
                *run.warnings,
                *pieces.notes,
                *recorded.notes,
                *(f"{b.name} did not load: {b.error}" for b in broken),
            )
        )
    )


@dataclass(slots=True, kw_only=True)
class Found:
    """What rules found in a recording, before anything is explained."""

    findings: list[Finding]
    records: Records
    still: list[tuple[str, int]]  # counts of parameters as the end of a rank's run left them: TRAINED or STILL, n


def found_in(recorded: RecordedRun, plugins: Sequence[str] = ()) -> Found:
    """Ask all rules."""
    seen = look_at_job(recorded, tuple(plugins))
    looks = [seen.looks[rank] for rank in recorded.ranks]
    records = Records({look.rank: look.records for look in looks})
    found = found_over_ranks(recorded, tuple(plugins), seen, records)
    return Found(
        findings=[*(f for look in looks for f in look.findings), *found],
        records=records,
        still=[count for look in looks for count in look.still],
    )


def looked_at(recorded: RecordedRun, records: Records, still: Sequence[tuple[str, int]]) -> Looked:
    """What was seen of the run.

    Args:
        recorded: an open recording.
        records: its step records.
        still: counts of parameters.
    """
    at = ["losses"] if records.have("loss") else []
    at += ["gradients"] if records.have("grad_norm") else []
    if "gradients" not in at:
        at += _in_rows(recorded)
    return Looked(
        at=tuple(dict.fromkeys(at)),
        n_trained=sum(n for site, n in still if site == TRAINED),
        n_still=sum(n for site, n in still if site == STILL),
        lr_was_zero=bool(records) and all((each.column("lr") == 0).all() for each in records.by_rank.values()),
    )


def _in_rows(recorded: RecordedRun) -> list[str]:
    """What rows tell of; of a dump any value is something."""
    if recorded.run.imported is not None:
        return ["values"] if holds_values(recorded) else []
    return [name for phase, name in _PARTS.items() if any(t.num_rows for _, t in recorded.scan(partial(_is_of, phase)))]


def _is_of(phase: str, table: Any) -> Any:
    return pc.equal(table["phase"], arrow(phase))


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


# A law says that two sides of an equation differ, whatever the reason. A sum over ranks that came out wrong, a device
# that computes wrongly, a rank with other gradients break the law of gradients too; a gradient that is left out leaves
# its parameter without one.
def with_laws(folded: Sequence[Folded]) -> tuple[Folded, ...]:
    """The same findings; laws that another one explains are told in its `then`."""
    by = (*LAWS, REPLICAS)
    return told_under(folded, lambda each: _leader(each.finding, folded) if each.finding.code in by else None, _with)


def _leader(law: Finding, folded: Sequence[Folded]) -> Folded | None:
    return next((each for each in folded if _explains(each.finding, law)), None)


def _explains(other: Finding, law: Finding) -> bool:
    if other.severity == "note":
        return False
    if law.code == REPLICAS:
        return other.cause == "collective-fault" and other.step <= law.step
    if other.code in LAWS:
        if law.kind == "stagnation" and law.site == "" and law.param is None:
            return other.code == LAWS[0] and other.step <= law.step  # why nothing at all is trained
        is_first = LAWS.index(other.code) < LAWS.index(law.code)
        return is_first and other.step == law.step and (other.param == law.param or law.severity == "note")
    if other.kind == "stagnation" and other.step == law.step and other.param == law.param is not None:
        return True  # it says why, of this parameter
    if other.kind not in _KINDS or other.code == _SCHEDULE:
        return False
    of_ranks = law.code in _OF_RANKS and other.severity == "error" and other.step <= law.step
    return of_ranks or other.step == law.step or _is_seen_later(other, law)


def _is_seen_later(other: Finding, law: Finding) -> bool:
    """Whether it is of the same parameter, or of replicas that lost their gradients, when they are compared next."""
    is_same = other.param == law.param is not None or law.code == "HC309"
    return other.kind in _APART and is_same and law.step < other.step <= law.step + LATER


def _with(leader: Folded, laws: Sequence[Finding]) -> Folded:
    finding = leader.finding
    began = min((law for law in laws if law.step < finding.step), key=lambda law: law.step, default=None)
    if began is not None:
        why = f"it began at step {began.step}: {began.title}"
        others = tuple(each for each in finding.why if each != GRADIENTS_AGREE)  # at that later step
        finding = replace(finding, step=began.step, why=(*others, why))
        if began.param is not None:
            finding = replace(finding, param=began.param, site=began.site)
        if began.cause == "missing-gradient-sync" and finding.cause == "replica-drift":  # why they went apart
            finding = replace(finding, cause=began.cause, confidence=began.confidence, remedy=_REDUCE)
    said = tuple(f"step {law.step}: {law.title}" for law in laws if law is not began)
    return replace(leader, finding=replace(finding, then=(*finding.then, *said)))


def with_course(folded: Sequence[Folded], records: Records) -> tuple[Folded, ...]:
    """The same findings; those of a jump tell of the learning rate before it, and whether it came back.

    Args:
        folded: findings.
        records: step records of all ranks.
    """
    found = [each for each in folded if each.finding.code == SPIKE]
    past = {rank: records.of_rank(rank) for rank in {each.finding.rank for each in found}}
    return tuple(
        replace(each, finding=_told_of_spikes(each.finding, past[each.finding.rank])) if each in found else each
        for each in folded
    )


def _told_of_spikes(finding: Finding, records: Sequence[StepRecord]) -> Finding:
    at = next((i for i, record in enumerate(records) if record.step == finding.step), None)
    if at is None:
        return finding
    return replace(
        finding,
        why=tuple(dict.fromkeys((*finding.why, *_raised(records[max(0, at - BEFORE - 1) : at + 1])))),
        then=(*finding.then, *_came_back(records, at)),
    )


def _raised(records: Sequence[StepRecord]) -> tuple[str, ...]:
    pairs = [(a, b) for a, b in itertools.pairwise(records) if a.lr and b.lr and b.lr >= RISE * a.lr]
    return tuple(rose(a.lr or 0.0, b.lr or 0.0, b.step) for a, b in pairs)


def _came_back(records: Sequence[StepRecord], at: int) -> tuple[str, ...]:
    """How many steps it took to come back below what counts as a jump."""
    found: list[str] = []
    for name, values, counts in (
        ("the loss", [record.loss for record in records], [record.n_microbatches for record in records]),
        ("the gradient's norm", [record.grad_norm for record in records], [0] * len(records)),
    ):
        series = Series()
        jump = [series.add(*each) for each in zip(values[: at + 1], counts, strict=False)][-1]
        if jump is None:
            continue
        later = values[at + 1 :]
        n = next((i for i, value in enumerate(later) if value is not None and abs(value) <= jump.limit), None)
        if n is not None:
            found.append(f"{name} was as before {counted(n + 1, 'step')} later")
        elif later:
            found.append(f"{name} has not come back in the {counted(len(later), 'step')} after it")
    return tuple(found)
