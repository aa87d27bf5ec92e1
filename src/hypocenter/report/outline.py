"""What a report says, in order, before any format decides how it looks. Every format renders this and adds nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hypocenter.diagnose import verdicts
from hypocenter.diagnose.judged_evidence import TO_MEND
from hypocenter.in_words import counted
from hypocenter.nouns import Diagnosis, Finding, Remedy, Run, Severity
from hypocenter.report import wording
from hypocenter.report.caret import span, window

_LONGEST_LINE = 1000  # characters of a source line in formats without a width


class Recorded(Protocol):
    """What most formats need of an open recording: where it lies and what made it."""

    directory: Path
    run: Run

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged, one line each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The source line, and the columns of it that went wrong."""

    line: int
    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One labelled sentence below a finding."""

    label: str  # cause, sample, fix, op, why, limit, then, seen, also named
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One finding, in words."""

    severity: Severity
    code: str
    title: str
    place: str  # file:line, or empty
    where: str
    subject: str  # the part of `where` that names the site
    chips: tuple[str, ...]
    excerpt: Excerpt | None
    points: tuple[Point, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A whole report, in words."""

    name: str
    status: str
    verdict: str  # one sentence: healthy, cannot tell because, or what was found
    entries: tuple[Entry, ...]
    hidden: str  # what is not shown and how to see it, or empty
    remarks: tuple[str, ...]  # what was cut, skipped or switched off
    summary: str
    next_label: str
    next_command: str


def outline(recorded: Recorded, diagnosis: Diagnosis, *, notes: bool = False, seconds: float | None = None) -> Outline:
    """Put a diagnosis into words.

    Args:
        recorded: the recording that was diagnosed.
        diagnosis: its findings, causes first.
        notes: also show findings of severity `note`.
        seconds: how long reading took, if that is to be said.
    """
    run_dir = str(recorded.directory)
    shown = [f for f in diagnosis.findings if notes or f.severity != "note"]
    hidden = [] if notes else [f for f in diagnosis.findings if f.severity == "note"]
    has_error = any(f.severity != "note" for f in diagnosis.findings)
    return Outline(
        name=wording.clean(recorded.run.name or recorded.directory.name),
        status=diagnosis.status,
        verdict=_verdict(diagnosis),
        entries=tuple(_entry(finding, run_dir, max(diagnosis.n_ranks, 1)) for finding in shown),
        hidden=_hidden(hidden),
        remarks=tuple(wording.sentence(note) for note in dict.fromkeys((*diagnosis.notes, *recorded.problems))),
        summary=_summary(diagnosis, seconds),
        next_label="report" if has_error else "sites",
        next_command=(
            wording.command("report", run_dir, "-o", "report.html") if has_error else wording.command("show", run_dir)
        ),
    )


def _hidden(notes: Sequence[Finding]) -> str:
    """Return how many notes are not shown; one that is proven is named, as it may be what the user looks for."""
    if not notes:
        return ""
    proven = [wording.sentence(note.title) for note in notes if note.confidence == "proven"]
    more = f" and {len(proven) - 1} more" if len(proven) > 1 else ""
    named = f"; proven: {proven[0]}{more}" if proven else ""
    return f"{counted(len(notes), 'note')} hidden, show with --notes{named}"


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.status == "cannot-tell":
        return "cannot tell: " + (wording.sentence("; ".join(diagnosis.why)) or "there is too little to judge")
    if diagnosis.status == "healthy":
        return "healthy: nothing at or above warning"
    return f"{wording.tally(*_counts(diagnosis))}"


def _counts(diagnosis: Diagnosis) -> tuple[int, int]:
    severities = [finding.severity for finding in diagnosis.findings]
    return severities.count("error"), severities.count("warning")


def _summary(diagnosis: Diagnosis, seconds: float | None) -> str:
    extent = ", ".join(
        wording.count(n, noun)
        for n, noun in ((diagnosis.n_steps, "step"), (diagnosis.n_ranks, "rank"), (diagnosis.n_sites, "site"))
    )
    took = f" in {seconds:.1f} s" if seconds is not None else ""
    return f"{wording.tally(*_counts(diagnosis))} in {extent} (read {wording.count(diagnosis.n_rows, 'row')}{took})"


def _entry(finding: Finding, run_dir: str, n_ranks: int) -> Entry:
    return Entry(
        severity=finding.severity,
        code=wording.clean(finding.code),
        title=wording.clean(finding.title),
        place=wording.source_place(finding.source) if finding.source else "",
        where=wording.where(finding, n_ranks),
        subject=wording.subject(finding),
        chips=tuple(wording.clean(chip) for chip in finding.chips),
        excerpt=_excerpt(finding),
        points=tuple(_points(finding)),
        commands=tuple(_commands(finding, run_dir)),
    )


def _excerpt(finding: Finding) -> Excerpt | None:
    if finding.source is None or not finding.source.text.strip():
        return None
    full = wording.clean(finding.source.text.strip("\r\n"), at_most=100_000).strip()
    text, start, stop = window(full, *span(full, finding.op), room=_LONGEST_LINE)
    return Excerpt(line=finding.source.line, text=text, start=start, stop=stop)


def _points(finding: Finding) -> Iterator[Point]:
    """Yield cause and fix, then the evidence; points with the same label stand one after the other."""
    yield Point(label="cause", text=wording.cause(finding))
    if sample := wording.sample(finding):
        yield Point(label="sample", text=sample)
    for advice in _advice(finding):
        yield Point(label="fix", text=wording.remedy(advice))
    if finding.op:
        yield Point(label="op", text=wording.clean(finding.op))
    for text in finding.why:
        if not text.startswith(TO_MEND):
            yield Point(label="why", text=wording.sentence(text))
    if limit := wording.limit(finding):
        yield Point(label="limit", text=limit)
    if finding.then:
        between = "; " if any(mark in each for each in finding.then for mark in ",:") else ", "
        yield Point(label="then", text=wording.sentence(between.join(finding.then)))
    if finding.count > 1:
        yield Point(label="seen", text=f"{finding.count:,} times, this is the first")
    others = [wording.clean(name) for name in finding.names if name != finding.site]
    if others:
        yield Point(label="also named", text=", ".join(others))


def _advice(finding: Finding) -> Iterator[Remedy]:
    """Yield what mends it, before the remedy that only keeps it away."""
    for text in finding.why:
        if text.startswith(TO_MEND):
            yield Remedy(action="change-code", text=text.removeprefix(TO_MEND))
    if finding.remedy:
        yield finding.remedy


def _commands(finding: Finding, run_dir: str) -> Iterator[str]:
    yield wording.command("explain", finding.cause if finding.cause in verdicts.causes() else finding.code)
    if finding.site:
        yield wording.command("show", run_dir, "--site", wording.site_glob(finding.site))
    if finding.remedy is not None and finding.remedy.action == "fp32-island":
        yield wording.command("cure", run_dir)
    if finding.bundle:
        yield wording.command("replay", str(Path(run_dir) / finding.bundle))
