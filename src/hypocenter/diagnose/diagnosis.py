"""A recording in, its Diagnosis out: rules over rows, evidence judged, consequences folded, causes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypocenter.detect import engine, group_engine
from hypocenter.detect.whole import doubts
from hypocenter.diagnose import deaths, verdicts
from hypocenter.diagnose.exhibits import Exhibits, load
from hypocenter.diagnose.faulty_device import with_device
from hypocenter.diagnose.fold import fold
from hypocenter.diagnose.group import Folded
from hypocenter.diagnose.handed_on import without_received
from hypocenter.diagnose.job_end import jobs_of
from hypocenter.diagnose.laws import with_laws
from hypocenter.diagnose.looked import Still, looked_at, still_in
from hypocenter.diagnose.panels import panels_of
from hypocenter.diagnose.ranks import together
from hypocenter.diagnose.rows import Recorded, extent, holds_values, steps_of
from hypocenter.diagnose.shelf import Shelf
from hypocenter.nouns import Diagnosis, Finding, Place, Status, StepRecord

_NONFINITE = ("HC104",)  # values that are not finite, of which a dump does not show what became


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
    shelf = Shelf()
    still: list[Still] = []
    for step in steps_of(recorded, checker.reads, over_ranks.reads, shelf):
        if step.record is not None:
            records[step.rank, step.step] = step.record
        still += still_in(step.readings)
        found += checker.feed(step.rank, step.step, step.record, step.readings)
    for panel in panels_of(shelf, records, ranks=recorded.ranks, places=recorded.places):
        found += over_ranks.feed(panel)
    jobs = jobs_of(recorded, records)
    for job in jobs:
        found += over_ranks.end(job)
    shelf.close()
    evidence, dead = deaths.apart(load(recorded.evidence_files(), recorded.directory))
    exhibits = without_received(together(evidence), recorded.places)
    found = deaths.explained(found, dead)
    folded = with_device(fold(exhibits.found, [f for f in found if f.code != deaths.CODE], records))
    folded = with_laws(folded)
    folded = deaths.with_deaths(folded, [f for f in found if f.code == deaths.CODE])
    status, why = _status(folded, exhibits, records, recorded, doubts(jobs[-1], looked_at(recorded, records, still)))
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
        notes=_notes(recorded, exhibits),
    )


def _placed(finding: Finding, places: Mapping[int, Place]) -> Finding:
    place = places.get(finding.rank)
    return finding if place is None else replace(finding, coords=place.coords)


def _status(
    folded: Sequence[Folded],
    exhibits: Exhibits,
    records: dict[tuple[int, int], StepRecord],
    recorded: Recorded,
    doubts: tuple[str, ...],
) -> tuple[Status, tuple[str, ...]]:
    errors = [f for f in folded if f.finding.severity == "error"]
    if errors and not any(f.is_located or _is_followed(f.finding, recorded) for f in errors):
        return "cannot-tell", tuple(dict.fromkeys(_unexplained(f.finding, exhibits, records) for f in errors))
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


def _unexplained(finding: Finding, exhibits: Exhibits, records: dict[tuple[int, int], StepRecord]) -> str:
    where = f"step {finding.step}: {finding.title}"
    shown = next((e for e in exhibits.found if e.finding.step == finding.step and e.finding.rank == finding.rank), None)
    if shown is not None and shown.evidence.why_not:
        return f"{where}; {shown.evidence.why_not}"
    record = records.get((finding.rank, finding.step))
    if record is not None and record.finding and shown is None:
        return f"{where}; its evidence {record.finding} is missing or cannot be read"
    return f"{where}; there was no replay of this step"


def _notes(recorded: Recorded, exhibits: Exhibits) -> tuple[str, ...]:
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
                *run.warnings,
                *exhibits.notes,
                *(f"{b.name} did not load: {b.error}" for b in broken),
            )
        )
    )
