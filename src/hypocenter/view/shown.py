"""A followed run as parts of a page: pieces of HTML, each with a tag that changes when the piece does."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hypocenter.json_answer import plain
from hypocenter.nouns import Diagnosis, Finding, StepRecord
from hypocenter.report import wording
from hypocenter.report.job_steps import was_skipped_by_scaler
from hypocenter.report.outline import outline
from hypocenter.report.page.curves import is_bad, pictures
from hypocenter.report.page.details import details_of
from hypocenter.report.page.document import shell
from hypocenter.report.page.ranks import ranks_of
from hypocenter.report.page.run_facts import in_a_line, run_facts
from hypocenter.report.rank_grid import ranks_in_words
from hypocenter.report.sites import SiteLine
from hypocenter.report.sites import is_bad as is_bad_site
from hypocenter.view import page
from hypocenter.view.findings import Findings
from hypocenter.view.following import FollowedRun

PARTS = ("status", "finding", "curves", "ranks", "steps", "sites", "facts")
MOST_SITES = 40  # of the table
_MOST_CARDS, _MOST_MOVES = 10, 8
_UNKNOWN = Diagnosis(status="cannot-tell")


@dataclass(frozen=True)
class Piece:
    """Some HTML or JSON, its tag, and itself compressed: made once, however many ask for it."""

    data: bytes

    @cached_property
    def tag(self) -> str:
        """A digest of the content."""
        return hashlib.blake2b(self.data, digest_size=9).hexdigest()

    @cached_property
    def zipped(self) -> bytes:
        """The content as gzip."""
        return gzip.compress(self.data, compresslevel=4, mtime=0)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page of a run consists of at one moment."""

    parts: dict[str, Piece]
    title: str
    turn: str  # names what the page has to turn to; empty while nothing broke
    is_over: bool

    @cached_property
    def state(self) -> Piece:
        """JSON with the tags of all parts: all that a browser asks for as long as nothing changes."""
        tags = {name: piece.tag for name, piece in self.parts.items()}
        value = {"parts": tags, "title": self.title, "turn": self.turn, "is_over": self.is_over}
        return Piece(json.dumps(plain(value)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One row of the table of the latest steps."""

    values: tuple[str, ...]
    says: str
    is_bad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """One row of the table of sites."""

    name: str
    cells: tuple[str, ...]
    chips: tuple[str, ...]
    is_bad: bool


_COLUMNS: dict[str, Callable[[StepRecord], str]] = {
    "step": lambda r: f"{r.step:,}",
    "loss": lambda r: _number(r.loss),
    "gradient norm": lambda r: _number(r.grad_norm),
    "learning rate": lambda r: _number(r.lr),
    "loss scale": lambda r: _number(r.loss_scale),
    "time": lambda r: _ms(r.step_ms) if r.step_ms else "",
}


class Recorded:
    """What `outline` and cards need of a recording, without its rows."""

    def __init__(self, run: FollowedRun) -> None:
        self.directory, self.run = run.directory, run.run
        self.problems = list(run.problems)


class RanksPicture:
    """The part of the page that shows where all ranks stand, of one run.

    Of 10,000 ranks it takes half a second, and what was found does not wait for it: it is drawn a quarter of the time.
    """

    def __init__(self) -> None:
        self._text, self._of, self._next_s = "", (-1, _UNKNOWN), 0.0

    def is_due(self, run: FollowedRun, findings: Findings) -> bool:
        """Return whether it is older than what is known, and may be drawn again."""
        is_old = self._of[0] != run.version or self._of[1] is not (findings.diagnosis or _UNKNOWN)
        return is_old and time.monotonic() >= self._next_s

    def drawn(self, run: FollowedRun, findings: Findings) -> str:
        """Return it, drawn anew where it is due."""
        if self.is_due(run, findings):
            began_s, diagnosis = time.monotonic(), findings.diagnosis or _UNKNOWN
            grid = ranks_of(run.states(), diagnosis) if run.n_ranks > 1 else None
            self._text = shell(page.__name__, "parts.html.j2").module.ranks(grid, _pace(run))  # pyright: ignore
            self._of, now_s = (run.version, diagnosis), time.monotonic()
            self._next_s = now_s + 3 * (now_s - began_s)
        return self._text


def shown(run: FollowedRun, findings: Findings, picture: RanksPicture) -> Shown:
    """Render a run as it is now."""
    diagnosis = findings.diagnosis or _UNKNOWN
    first = next((f for f in diagnosis.findings if f.severity != "note"), None)
    bad = run.first_bad_step
    texts = _texts(run, findings, diagnosis, picture)
    parts = {name: Piece(text.encode("utf-8", "replace")) for name, text in texts}
    name = wording.clean(run.run.name or run.directory.name, 60)
    if first is not None:
        title, turn = f"✗ {first.code} step {first.step} · {name}", f"{first.code}-{first.step}"
    elif bad is not None:
        title, turn = f"✗ step {bad} · {name}", f"bad-{bad}"
    else:
        title, turn = f"{_at(run)} · {name}", ""
    return Shown(parts=parts, title=title, turn=turn, is_over=not run.is_running and findings.is_whole)


def _at(run: FollowedRun) -> str:
    return f"step {run.course.last_step:,}" if run.course.last_step >= 0 else run.status


def _texts(
    run: FollowedRun, findings: Findings, diagnosis: Diagnosis, picture: RanksPicture
) -> Iterable[tuple[str, str]]:
    template = shell(page.__name__, "parts.html.j2").module
    recorded, records = Recorded(run), run.records()
    report = outline(recorded, diagnosis)
    details = [
        details_of(f, findings.evidence.get(f.bundle or ""), {}, reads_source=False) for f in _important(diagnosis)
    ]
    job = run.course.records()
    yield "status", template.status(_status(run, job))  # pyright: ignore
    yield (
        "finding",
        template.finding(  # pyright: ignore
            list(zip(report.entries, details, strict=False))[:_MOST_CARDS],
            _verdict(run, findings, diagnosis),
            _broke(run, diagnosis),
        ),
    )
    yield "curves", template.curves(pictures(records, diagnosis.findings))  # pyright: ignore
    yield "ranks", picture.drawn(run, findings)
    yield "steps", template.steps(*_table(run.course.latest()), _of_ranks(run))  # pyright: ignore
    yield "sites", template.sites(*_sites(findings.sites or (), run))  # pyright: ignore
    yield "facts", template.facts(in_a_line(run.run), run_facts(run.run), report.remarks)  # pyright: ignore


def _of_ranks(run: FollowedRun) -> str:
    """Say of which ranks curves and steps are the mean or the worst; empty for one."""
    if run.n_read < 2:
        return ""
    return f"{run.n_read:,} ranks" if run.n_drawn >= run.n_read else f"{run.n_drawn:,} of {run.n_read:,} ranks"


def _important(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.severity != "note"]


def _status(run: FollowedRun, job: Sequence[StepRecord]) -> list[tuple[str, str]]:
    """Return pairs of a name and a value, for the line at the top."""
    facts = [("status", run.status)]
    if run.n_read < run.n_ranks:
        facts.append(("reading", f"{run.n_read:,} of {run.n_ranks:,} ranks"))
    if job:
        last = job[-1]
        facts.append(("step", f"{last.step:,}"))
        numbers = (("loss", last.loss), ("gradient norm", last.grad_norm))
        facts += [(name, wording.number(value)) for name, value in numbers if value is not None]
        recent = sorted(record.step_ms for record in job[-15:] if record.step_ms)
        if recent:
            facts.append(("a step takes", _ms(recent[len(recent) // 2])))
    if run.is_running and run.seen is not None and run.seen.phase not in ("outside", "off"):
        facts.append(("now in", run.seen.phase))
    return [*facts, *([("ranks", f"{run.n_ranks:,}")] if run.n_ranks > 1 else [])]


def _ms(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.3g} ms"


def _verdict(run: FollowedRun, findings: Findings, diagnosis: Diagnosis) -> tuple[str, str]:
    """Return the class of a card and its sentence, where there is no finding to show."""
    if run.n_ranks == 0:
        return "note", "nothing was recorded yet: the program has just started, or has made no step"
    if findings.diagnosis is not None and findings.is_whole and not run.is_running:
        if diagnosis.status == "healthy":
            return "healthy", "healthy: nothing at or above warning"
        return "cannot-tell", "cannot tell: " + (
            wording.sentence("; ".join(diagnosis.why)) or "there is too little to judge"
        )
    if findings.why_not:
        return "note", f"{wording.sentence(findings.why_not)}; {wording.command('check', str(run.directory))} tells all"
    return "note", "nothing wrong so far" if run.is_running else "it has ended; its diagnosis is being made"


def _broke(run: FollowedRun, diagnosis: Diagnosis) -> str:
    """Say that a step went bad of which no finding tells yet; empty when there is none."""
    bad = run.first_bad_step
    if bad is None or any(finding.severity == "error" for finding in diagnosis.findings):
        return ""
    rank = next((r for r, now in sorted(run.ranks.items()) if now.first_bad_step == bad), 0)
    where = f", rank {rank} of {run.n_ranks}" if run.n_ranks > 1 else ""
    return f"loss or gradients are not finite from step {bad:,} on{where}"


def _table(records: Sequence[StepRecord]) -> tuple[list[str], list[StepLine]]:
    """Return the columns that hold something, and a line for each step."""
    texts = {name: [of(record) for record in records] for name, of in _COLUMNS.items()}
    columns = [name for name, values in texts.items() if any(values)]
    rows = zip(records, *(texts[name] for name in columns), strict=True)
    return columns, [StepLine(values=tuple(values), says=_says(r), is_bad=is_bad(r)) for r, *values in rows]


def _sites(sites: Sequence[SiteLine], run: FollowedRun) -> tuple[list[SiteRow], str]:
    """Return the sites that are worst off, and what to type to see the others."""
    own = [site for site in sites if not site.replay and site.phase != "data"]
    risk = {True: -math.inf, False: math.inf}
    order = sorted(own, key=lambda s: risk[is_bad_site(s)] if s.headroom_bits is None else s.headroom_bits)
    left = len(own) - MOST_SITES
    more = f"{left:,} more: {wording.command('show', str(run.directory))}" if left > 0 else ""
    return [_site(site) for site in order[:MOST_SITES]], more


def _site(site: SiteLine) -> SiteRow:
    bits = "none" if is_bad_site(site) else "" if site.headroom_bits is None else f"{site.headroom_bits:.1f} bits"
    port = wording.port_name(site.phase, site.port)
    what = " ".join(filter(None, (wording.clean(site.site) or "(model)", wording.clean(site.op))))
    return SiteRow(
        name=what, is_bad=is_bad_site(site), chips=site.chips,
        cells=(port, site.phase, site.dtype, f"{site.n_steps:,}", site.magnitude, bits),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else wording.number(value)


def _says(record: StepRecord) -> str:
    if was_skipped_by_scaler(record):
        return "skipped by the loss scaler"
    if record.n_bad_grads:
        return f"{wording.count(record.n_bad_grads, 'gradient')} not finite"
    return "not finite" if is_bad(record) else ""


def _pace(run: FollowedRun) -> str:
    """Say how far apart the ranks are, and which were put on other hosts; empty when there is nothing to say."""
    away = run.lives.away
    lasts = {rank: now.last.step for rank, now in run.ranks.items() if now.last is not None and rank not in away}
    said: list[str] = []
    if lasts and min(lasts.values()) != max(lasts.values()):
        behind = min(lasts, key=lambda rank: lasts[rank])
        said.append(f"last steps from {lasts[behind]:,} (rank {behind}) to {max(lasts.values()):,}")
    moved = [
        f"{ranks_in_words(ranks)} moved from {wording.clean(before, 40)} to {wording.clean(now, 40)}"
        for (before, now), ranks in run.moved().items()
    ]
    left = len(moved) - _MOST_MOVES
    return "; ".join([*said, *moved[:_MOST_MOVES], *([f"{left:,} more hosts were replaced"] if left > 0 else [])])


def since(started: str) -> str:
    """Return when a run began, to the minute."""
    return wording.clean(started, 40).replace("T", " ")[:16]
