"""One offline page: the findings as text, the heat map of where and when, charts, and what ran before the failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.diagnose.judged_evidence import load
from hypocenter.nouns import Diagnosis, Finding, Run
from hypocenter.record.reader import RecordedRun
from hypocenter.report import page, wording
from hypocenter.report.few_rows import few_rows
from hypocenter.report.outline import outline
from hypocenter.report.page.curves import loss_scale, pictures
from hypocenter.report.page.details import classes_of, details_of
from hypocenter.report.page.diary import diary_of
from hypocenter.report.page.document import embedded, file_text, policy, shell
from hypocenter.report.page.lanes import lanes_of
from hypocenter.report.page.payload import payload, replayed_scales
from hypocenter.report.page.ranks import ranks_of
from hypocenter.report.page.run_facts import in_a_line, run_facts
from hypocenter.report.page.upstream import Upstream, upstream_of
from hypocenter.report.rank_states import rank_states

suffix = ".html"

_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "vendor/htm-preact-standalone.umd.js",
    "drawing.js",
    "app.js",
    "diary.js",
    "lanes.js",
    "curves.js",
)
_STYLES = ("vendor/uPlot.min.css", "style.css")
_MOST_CARDS = 50  # a page with more is not read; the rest is counted and found in diagnosis.json


def render(recorded: RecordedRun, diagnosis: Diagnosis, *, reads_source: bool = True) -> str:
    """Return the page as text; it holds every script and style, and forbids the browser to load anything.

    Args:
        reads_source: whether files of the program may be read, for lines around the one that went wrong.
    """
    first = _first_located(diagnosis.findings)
    table, records = few_rows(recorded, first), recorded.step_records()
    upstream = upstream_of(first, table) if first else None
    diary = diary_of(table, records)
    shown = _cut(diagnosis)
    files = recorded.evidence_files() if diary or any(finding.bundle for finding in shown.findings) else []
    pieces = load(files, recorded.directory).found
    replayed = replayed_scales(piece.evidence for piece in pieces)
    by_bundle, classes = {piece.finding.bundle: piece.evidence for piece in pieces}, classes_of(table)
    curves = pictures(records, diagnosis.findings)
    report = outline(recorded, shown, notes=True)
    lanes = lanes_of(records, diagnosis)
    data, stills = payload(table, records, diagnosis, upstream, diary, replayed)
    details = [
        details_of(finding, by_bundle.get(finding.bundle), classes, reads_source=reads_source)
        for finding in shown.findings
    ]
    styles, scripts = "\n".join(_file(name) for name in _STYLES), [_file(name) for name in _SCRIPTS]
    return shell(page.__name__, "shell.html.j2").render(
        report=report,
        tally=_tally(diagnosis),
        facts=_facts(recorded.run, diagnosis),
        cards=list(zip(report.entries, details, strict=True)),
        curves=curves,
        run_facts=run_facts(recorded.run),
        run_summary=in_a_line(recorded.run),
        upstream=upstream,
        upstream_about=_about(upstream, first),
        diary=diary,
        diary_still=loss_scale(records, diagnosis.findings) if diary else None,
        ranks=ranks_of(rank_states(recorded, diagnosis), diagnosis),
        version=__version__,
        run_dir=wording.clean(str(recorded.directory)),
        again=wording.command("report", str(recorded.directory), "-o", "report.html"),
        style=Markup(styles),
        scripts=[Markup(script) for script in scripts],
        policy=policy(styles, scripts),
        stills=stills,
        lanes=lanes,
        data=embedded(data | {"lanes": lanes.data if lanes else None}),
    )


def _first_located(findings: Sequence[Finding]) -> Finding | None:
    return next(
        (finding for finding in findings if (finding.site or finding.param) is not None and finding.severity != "note"),
        None,
    )


def _cut(diagnosis: Diagnosis) -> Diagnosis:
    left_out = len(diagnosis.findings) - _MOST_CARDS
    if left_out <= 0:
        return diagnosis
    note = f"{wording.count(left_out, 'further finding')} not on this page, see diagnosis.json"
    return replace(diagnosis, findings=diagnosis.findings[:_MOST_CARDS], notes=(*diagnosis.notes, note))


def _tally(diagnosis: Diagnosis) -> str:
    severities = [finding.severity for finding in diagnosis.findings]
    counts = wording.tally(severities.count("error"), severities.count("warning"))
    return f"{counts}, {wording.count(severities.count('note'), 'note')}"


def _facts(run: Run, diagnosis: Diagnosis) -> str:
    extent = [(diagnosis.n_ranks, "rank"), (diagnosis.n_steps, "step"), (diagnosis.n_sites, "site")]
    facts = [wording.count(n, noun) for n, noun in extent]
    level = run.config.get("level")
    return " · ".join([*facts, *([f"level {wording.clean(str(level))}"] if level else []), run.status])


def _about(upstream: Upstream | None, first: Finding | None) -> str:
    if upstream is None or first is None:
        return ""
    origin = "from the replay of " if upstream.is_replay else ""
    place = f"{origin}step {first.step}, micro-batch {first.microbatch}, rank {first.rank}"
    return f"{place}; {wording.count(upstream.n_earlier, 'earlier row')} not shown" if upstream.n_earlier else place


def _file(name: str) -> str:
    return file_text(page.__name__, name)
