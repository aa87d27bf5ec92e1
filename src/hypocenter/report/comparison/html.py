"""One offline page: the answer as text, both module trees side by side, errors against noise, every row, curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.compare.comparison import Comparison, Distance, Divergence, RowComparison
from hypocenter.compare.sentences import place, power
from hypocenter.compare.verdict import counts_from, source_of_floor
from hypocenter.report import curves_picture, wording
from hypocenter.report import page as report_page
from hypocenter.report.comparison import page
from hypocenter.report.comparison.page.payload import Material, payload
from hypocenter.report.comparison.ranking import ranked, times
from hypocenter.report.page.document import embedded, file_text, policy, shell

suffix = ".html"
_SHARED_STYLES = ("vendor/uPlot.min.css", "style.css")
_SHARED_SCRIPTS = ("vendor/uPlot.iife.min.js", "vendor/htm-preact-standalone.umd.js", "drawing.js")
_SCRIPTS = ("states.js", "trees.js", "errors.js", "rows.js", "diff.js")
_ROWS = 12  # of the table that is shown without scripts
_GROWTH = 8  # modules that make errors grow, named
WIDTH, HEIGHT = 560, 64  # pixels
_LEFT, _RIGHT, _LINE = 12, 12, 30
_LEAST = -52  # exponent: below it a relative error is rounding of float64
_TICKS = 8
_APART = 74  # pixels between the words of two marks, else they would overlap
STYLE = """
svg.ruler { display: block; max-width: 100%; height: auto; font: 11px system-ui, "DejaVu Sans", sans-serif; }
.ruler text { fill: var(--fg); } .ruler .mute { fill: var(--mute); } .ruler .axis, .ruler .tick { stroke: var(--line); }
.ruler .noise { fill: var(--mute); opacity: .22; } .ruler .budget { fill: var(--mute); opacity: .12; }
.ruler .floor { stroke: var(--mute); stroke-width: 2; } .ruler .error { stroke: var(--error); stroke-width: 3; }
.ruler .span { stroke: var(--error); stroke-width: 6; opacity: .3; }
.ruler text.bad { fill: var(--error); font-weight: 600; }
.ruler .mid { text-anchor: middle; } .ruler .end { text-anchor: end; }
""".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One labelled line of the card."""

    label: str
    text: str
    is_code: bool = False


def render(found: Comparison, material: Material | None = None) -> str:
    """Return the page as text; it holds every script and style, and forbids the browser to load anything."""
    material = material or Material()
    styles = "\n".join([*_shared(_SHARED_STYLES), file_text(page.__name__, "diff.css"), STYLE, curves_picture.STYLE])
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
        curves=[(one.name, Markup(curves_picture.inline(one.found, name=one.name))) for one in material.curves],
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
    if found.cause is not None:
        text = f"{found.cause} ({found.confidence})" if found.cause != "unknown" else "unknown"
        yield Point(label="cause", text=text)
    if found.fit is not None and found.fit.fix:
        yield Point(label="fix", text=wording.sentence(found.fit.fix))
    if found.first is not None:
        for text in _numbers(found.first, found):
            yield Point(label="numbers", text=text)
    for reason in found.why:
        yield Point(label="why", text=wording.sentence(reason))
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
    exact = f"{error:.3g}{between}"
    yield f"relative error {exact if power(error).startswith(f'{error:.3g}') else f'{power(error)} ({exact})'}"
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


def ruler(first: Divergence, least: float) -> str:
    """Draw error, floor and limit on an axis; empty when there is no noise, or a number is zero or not finite.

    Args:
        first: the place.
        least: times the floor from which an error counts.
    """
    error, floor, source = first.error, first.floor, source_of_floor(first)
    if source == "none" or not all(0.0 < value < math.inf for value in (error, floor)):
        return ""
    distance = first.row.distance if first.row is not None else None
    high = max(1.0, error * 2, distance.high if distance is not None and math.isfinite(distance.high) else 0.0)
    low, top = math.floor(max(_LEAST, math.log2(floor) - 4)), math.ceil(math.log2(high))
    return "".join(_parts(error, floor, least, distance, (low, max(top, low + 1))))


def _parts(error: float, floor: float, least: float, distance: Distance | None, span: tuple[int, int]) -> Iterator[str]:
    def at(value: float) -> float:
        share = (math.log2(value) - span[0]) / (span[1] - span[0])
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(share, 0.0), 1.0), 1)

    label = f"relative error {power(error)}, noise floor {power(floor)}, an error counts from {least:.3g} times it on"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    yield f'<svg class="ruler" {size} role="img" aria-label="{label}">'
    yield f'<rect class="noise" x="{_LEFT}" y="{_LINE - 8}" width="{at(floor) - _LEFT}" height="16"/>'
    if least > 1:
        wide = at(floor * least) - at(floor)
        yield f'<rect class="budget" x="{at(floor)}" y="{_LINE - 8}" width="{max(wide, 0):.1f}" height="16"/>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_LINE}" y2="{_LINE}"/>'
    for exponent in range(span[0], span[1] + 1, max(1, math.ceil((span[1] - span[0]) / _TICKS))):
        x = at(2.0**exponent)
        yield f'<line class="tick" x1="{x}" x2="{x}" y1="{_LINE - 4}" y2="{_LINE + 12}"/>'
        anchor = "mid" if x > 2 * _LEFT else ""
        yield f'<text class="mute {anchor}" x="{x if anchor else 0}" y="{_LINE + 26}">2^{exponent}</text>'
    if distance is not None and 0.0 < distance.low <= distance.high < math.inf:
        yield f'<line class="span" x1="{at(distance.low)}" x2="{at(distance.high)}" y1="{_LINE}" y2="{_LINE}"/>'
    for value, name in ((floor, "floor"), (error, "error")):
        yield f'<line class="{name}" x1="{at(value)}" x2="{at(value)}" y1="{_LINE - 11}" y2="{_LINE + 11}"/>'
    yield from _words(at(error), at(floor))
    yield "</svg>"


def _words(error: float, floor: float) -> Iterator[str]:
    near, y = error - floor < _APART, _LINE - 16
    yield f'<text class="{"end" if near else "mid"}" x="{floor + (6 if near else 0)}" y="{y}">noise floor</text>'
    end = error > WIDTH - _APART / 2
    kind = "end" if end and not near else "" if near else "mid"
    x = min(error + (10 if near else 6 if end else 0), WIDTH)
    yield f'<text class="bad {kind}" x="{x}" y="{y}">error</text>'
