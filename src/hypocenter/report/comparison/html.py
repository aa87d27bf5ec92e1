"""One offline page: the answer as text, both module trees side by side, errors against noise, every row, curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.compare.comparison import Comparison, Divergence, RowComparison
from hypocenter.compare.verdict import counts_from, source_of_floor
from hypocenter.compare.words import place, power
from hypocenter.report import page as report_page
from hypocenter.report import wording
from hypocenter.report.comparison import page
from hypocenter.report.comparison.page.material import Material
from hypocenter.report.comparison.page.payload import payload
from hypocenter.report.comparison.page.ruler import STYLE as RULER_STYLE
from hypocenter.report.comparison.page.ruler import ruler
from hypocenter.report.comparison.ranking import ranked, times
from hypocenter.report.curves import picture
from hypocenter.report.page.document import embedded, file_text, policy, shell

suffix = ".html"

_SHARED_STYLES = ("vendor/uPlot.min.css", "style.css")
_SHARED_SCRIPTS = ("vendor/uPlot.iife.min.js", "vendor/htm-preact-standalone.umd.js", "drawing.js")
_SCRIPTS = ("states.js", "trees.js", "errors.js", "rows.js", "diff.js")
_ROWS = 12  # of the table that is shown without scripts
_GROWTH = 8  # modules that make errors grow, named


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One labelled line of the card."""

    label: str
    text: str
    is_code: bool = False


def render(found: Comparison, material: Material | None = None) -> str:
    """The page as text. It holds every script and style, and forbids the browser to load anything."""
    material = material or Material()
    styles = "\n".join([*_shared(_SHARED_STYLES), file_text(page.__name__, "diff.css"), RULER_STYLE, picture.STYLE])
    scripts = [*_shared(_SHARED_SCRIPTS), *(file_text(page.__name__, name) for name in _SCRIPTS)]
    first = found.first
    return shell(page.__name__, "shell.html.j2").render(
        status=found.status,
        verdict={"same": "same", "diverged": "diverged", "cannot-tell": "cannot tell"}[found.status],
        sentence=wording.sentence(found.sentence),
        runs=[wording.clean(found.baseline), wording.clean(found.candidate)],
        facts=_facts(found),
        place=wording.source_place(first.source) if first is not None and first.source is not None else "",
        function=wording.clean(first.source.function) if first is not None and first.source is not None else "",
        source=wording.clean(first.source.text) if first is not None and first.source is not None else "",
        line=first.source.line if first is not None and first.source is not None else 0,
        ruler=Markup(ruler(first, counts_from(source_of_floor(first), found))) if first is not None else "",
        points=list(_points(found)),
        rows=[_static(row) for row in ranked(found) if row.verdict != "equal"][:_ROWS],
        n_rows=len(found.rows),
        growth=_growth(found),
        curves=[(one.name, Markup(picture.inline(one.found, name=one.name))) for one in material.curves],
        version=__version__,
        again=wording.clean(material.command, at_most=2000) or _command(found),
        style=Markup(styles),
        scripts=[Markup(script) for script in scripts],
        policy=policy(styles, scripts),
        data=embedded(payload(found, material)),
    )


def _shared(names: tuple[str, ...]) -> list[str]:
    return [file_text(report_page.__name__, name) for name in names]


def _command(found: Comparison) -> str:
    return wording.command("diff", found.baseline, found.candidate, "--report", "OUT.html")


def _facts(found: Comparison) -> str:
    matching = found.matching
    n_lone = len(matching.unmatched_baseline) + len(matching.unmatched_candidate)
    floor = {"repeats": "measured on repeats", "calibration": "measured by calibration"}.get(
        found.floor_source, found.floor_source
    )
    facts = [
        wording.count(found.n_steps, "step"),
        wording.count(len(matching.pairs), "pair"),
        f"{n_lone:,} unmatched",
        wording.count(found.n_rows, "row"),
        f"depth {found.depth}" if found.depth is not None else "nothing compared",
        f"noise floor {floor}",
    ]
    return " · ".join(facts)


def _points(found: Comparison) -> Iterator[Point]:
    if found.first is not None:
        for text in _numbers(found.first, found):
            yield Point(label="numbers", text=text)
    for reason in found.why:
        yield Point(label="why", text=wording.sentence(reason))
    if found.cause is not None:
        text = f"{found.cause} ({found.confidence})" if found.cause != "unknown" else "unknown"
        yield Point(label="cause", text=text)
    if found.fit is not None and found.fit.fix:
        yield Point(label="fix", text=wording.sentence(found.fit.fix))
    for note in found.notes:
        yield Point(label="note", text=wording.sentence(note))
    for words in _see(found):
        yield Point(label="see", text=wording.command(*words), is_code=True)


def _numbers(first: Divergence, found: Comparison) -> Iterator[str]:
    row, error, floor = first.row, first.error, first.floor
    distance = row.distance if row is not None else None
    between = ""
    if distance is not None and 0.0 < distance.low < distance.high < math.inf:
        between = f", between {distance.low:.3g} and {distance.high:.3g} at depth {distance.depth}"
    yield f"relative error {power(error)} ({error:.3g}{between})"
    source = ""
    if source_of_floor(first) == "none":
        yield "no noise: what a program is given or told must be equal"
        return
    if row is not None and row.floor.source in ("repeats", "calibration"):
        source = f", {row.floor.source}, {row.floor.n_samples:,} samples"
    elif row is not None and row.floor.source == "rounding":
        source = ", what rounding can do where all before is equal to the bit"
    elif row is not None and row.floor.source == "assumed":
        source = ", assumed for the dtype"
    apart = ""
    if floor > 0 and math.isfinite(error):
        least = counts_from(source_of_floor(first), found)
        apart = f"; the error is {_times(error / floor)} times it, where {least:.3g} times count"
    yield f"noise floor {power(floor)} ({floor:.3g}{source}){apart}"


def _see(found: Comparison) -> Iterator[tuple[str, ...]]:
    if found.first is None:
        return
    row = found.first.row
    sites = (row.pair.baseline[0].site, row.pair.candidate[0].site) if row is not None else ("", "")
    step = row.step if row is not None else found.first.step
    for run, site in zip((found.baseline, found.candidate), sites, strict=True):
        if site:
            yield ("show", run, "--site", wording.site_glob(site), "--step", str(step), "--values")


def _static(row: RowComparison) -> dict[str, str]:
    spot = row.pair.baseline[0]
    return {
        "verdict": row.verdict, "step": str(row.step), "phase": spot.phase,
        "site": wording.clean(place(spot.site, spot.port)),
        "error": power(row.distance.relative) if row.distance is not None else "?",
        "floor": power(row.floor.relative), "times": _times(times(row)), "by": row.pair.by,
    }  # fmt: skip


def _growth(found: Comparison) -> list[tuple[str, str, str]]:
    most = sorted(found.amplifications, key=lambda one: -one.factor)[:_GROWTH]
    return [(wording.clean(place(one.site)), one.phase, f"{one.factor:.3g}") for one in most]


def _times(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
