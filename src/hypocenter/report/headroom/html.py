"""The answer as one offline page: what the format would do, module by module, and other formats beside it.

The format that was asked about stands there without scripts; headroom.js changes it, sorts and finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hypocenter import __version__
from hypocenter.report import page as report_page
from hypocenter.report import wording
from hypocenter.report.headroom import page, sentences
from hypocenter.report.headroom.answer import Answer, Line
from hypocenter.report.headroom.scaled import ScaledHeadroom
from hypocenter.report.page.document import embedded, file_text, policy, shell
from hypocenter.summary.casting import floor_log2

MOST_SITES = 600  # of one page; the rest is counted
MODULE_PARTS = 2  # name parts of what folds together: layers.0
MOST_CELLS = 72
N_LEVELS = 6  # shades by powers of ten, from none to a tenth of the values and more
LEAST, MOST = -40, 20  # exponents that are always on the axis, and those of values that lie beyond, as far as
FARTHEST = 60
_CARDS = {"fits": "healthy", "overflows": "error", "cannot-tell": "cannot-tell"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Exponents of two in cells of equal width, the same for every format."""

    first: int
    octaves: int
    n_cells: int

    def cell(self, exponent: float) -> int:
        """Return the cell of an exponent; what lies beyond is put into the first or last."""
        return min(max(math.floor((exponent - self.first) / self.octaves), 0), self.n_cells - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One row of the page: a site's port."""

    at: int  # in the data that the script reads
    name: str
    about: str
    cells: tuple[str, ...]
    is_bad: bool
    svg: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Rows of a module that fold together, the nearest to its limit first."""

    name: str
    about: str
    sites: tuple[Site, ...]


def html(answers: Sequence[Answer], run: str, scaled: Sequence[ScaledHeadroom] = ()) -> str:
    """Return the page as HTML text.

    Args:
        answers: of the same readings in several formats, the one that was asked about first.
        run: its name.
        scaled: of the same readings in formats with scales of their own.
    """
    asked = answers[0]
    kept = [at for at, line in enumerate(asked.lines) if line.hist or line.bits is not None][:MOST_SITES]
    axis = _axis([asked.lines[at] for at in kept])
    styles = "\n".join([file_text(report_page.__name__, "style.css"), file_text(page.__name__, "headroom.css")])
    script = file_text(page.__name__, "headroom.js")
    formats = [*(_of_format(a, kept) for a in answers), *(_of_scaled(a, asked, kept) for a in scaled)]
    n_left = len(asked.lines) - len(kept)
    return shell(page.__name__, "shell.html.j2").render(
        run=wording.clean(run), asked=formats[0], formats=formats, card=_CARDS[asked.status],
        phases=[(t.phase, _modules(asked, kept, axis, t.phase)) for t in asked.phases], axis=_axis_svg(asked, axis),
        limits=[
            f"{wording.clean(r.site) or '(model)'} {wording.clean(r.op)}: {r.sentence(asked.format)}"
            for r in asked.reductions
        ],
        notes=[wording.clean(note, 2000) for note in asked.notes],
        left_out=f"{wording.count(n_left, 'site')} without values or beyond {MOST_SITES} not shown" if n_left else "",
        version=__version__, style=Markup(styles), scripts=[Markup(script)], policy=policy(styles, [script]),
        data=embedded({
            "axis": {"first": axis.first, "octaves": axis.octaves, "cells": axis.n_cells},
            "levels": N_LEVELS,
            "sites": [[asked.lines[at].hist_first, list(asked.lines[at].hist)] for at in kept],
            "formats": formats,
        }),
    )  # fmt: skip


def _axis(lines: Sequence[Line]) -> Axis:
    ends = [end for line in lines if line.hist for end in (line.hist_first, line.hist_first + len(line.hist))]
    first, last = max(min([LEAST, *ends]), -FARTHEST), min(max([MOST, *ends]), FARTHEST)
    octaves = max(1, math.ceil((last - first) / MOST_CELLS))
    return Axis(first=first, octaves=octaves, n_cells=math.ceil((last - first) / octaves))


def _of_format(found: Answer, kept: Sequence[int]) -> dict[str, Any]:
    """Return what a page says of one format: sentences, where its zones end, and the columns of each site."""
    form, said = found.format, (*map(sentences.phase_line, found.phases), *sentences.window_lines(found))
    return {
        "name": form.name,
        "status": _CARDS[found.status],
        "headline": wording.clean(sentences.headline(found), 2000),
        "said": [wording.clean(text, 2000) for text in said],
        "zones": [floor_log2(form.flushes_to), form.smallest_exponent, form.largest_exponent + 1],
        "columns": ["headroom", "overflow", "to zero", "subnormal"],
        "rows": [_row(found.lines[at]) for at in kept],
    }  # fmt: skip


def _row(line: Line) -> list[Any]:
    """Return the risk, whether it is bad, and the cells of a row."""
    shares = map(sentences.percent, (line.overflow, line.flushed, line.subnormal))
    return [_rounded(_risk(line)), int(bool(line.overflows)), sentences.bits(line), *shares]


def _of_scaled(found: ScaledHeadroom, asked: Answer, kept: Sequence[int]) -> dict[str, Any]:
    """Return what a page says of a format with scales of its own: nothing overflows, limits move with the data."""
    by_place = {(s.phase, s.site, s.port, s.dtype): s for s in found.sites}
    rows: list[list[Any]] = []
    for at in kept:
        line = asked.lines[at]
        site = by_place.get((line.phase, line.site, f"{line.port} {line.op}".rstrip(), line.dtype))  # type: ignore[arg-type]
        shares = (site.zero_at_least, site.zero_expected, site.zero_at_most) if site else (None, None, None)
        rows.append([_rounded(-shares[1] if shares[1] is not None else math.inf), 0, *map(sentences.percent, shares)])
    return {
        "name": found.format, "status": _CARDS[found.status], "headline": wording.clean(found.text, 2000),
        "said": [wording.clean(note, 2000) for note in found.notes], "zones": None,
        "columns": ["zero at least", "about", "at most"], "rows": rows,
    }  # fmt: skip


def _rounded(risk: float) -> float | None:
    return round(risk, 3) if math.isfinite(risk) else None


def _risk(line: Line) -> float:
    """Return the bits of headroom; below all of them for a share that overflows or becomes zero."""
    if line.overflows:
        return -1000.0 - 1000.0 * (line.overflow or 0.0)
    if line.flushed is not None and line.flushed >= 0.001:
        return -1000.0 * line.flushed
    return line.bits if line.bits is not None else math.inf


def _modules(found: Answer, kept: Sequence[int], axis: Axis, phase: str) -> list[Module]:
    groups: dict[str, list[tuple[int, Line]]] = {}
    for at, where in enumerate(kept):
        line = found.lines[where]
        if line.phase == phase:
            groups.setdefault(".".join(line.site.split(".")[:MODULE_PARTS]), []).append((at, line))
    modules = sorted(groups.items(), key=lambda item: min(_risk(line) for _, line in item[1]))
    return [
        Module(
            name=wording.clean(name) or "(model)",
            about=_about([line for _, line in group]),
            sites=tuple(_site(found, line, at, axis) for at, line in sorted(group, key=lambda one: _risk(one[1]))),
        )
        for name, group in modules
    ]


def _about(lines: Sequence[Line]) -> str:
    known = [line for line in lines if line.bits is not None]
    worst = min(known, key=lambda line: line.bits or 0.0, default=None)
    bad = sum(bool(line.overflows) for line in lines)
    said = [wording.count(len(lines), "site")]
    said += [f"least headroom {sentences.bits(worst)}"] if worst is not None else []
    return ", ".join([*said, *([f"{bad:,} overflow{'s' if bad == 1 else ''}"] if bad else [])])


def _site(found: Answer, line: Line, at: int, axis: Axis) -> Site:
    name = sentences.place(line)
    size = f"|max| {wording.number(line.absmax)} at step {line.step}"
    zones = (floor_log2(found.format.flushes_to), found.format.smallest_exponent, found.format.largest_exponent + 1)
    svg = (
        f'<svg class="cells" viewBox="0 0 {axis.n_cells} 1" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(_cells(line, axis, zones))}</svg>"
    )
    _, bad, *cells = _row(line)
    about = f"{name}, {line.dtype}, {size}"
    return Site(
        at=at, name=wording.cut_middle(name, 60), about=about, cells=tuple(cells), is_bad=bool(bad), svg=Markup(svg)
    )


def _cells(line: Line, axis: Axis, zones: tuple[int, int, int]) -> Iterator[str]:
    """Yield a rectangle for each cell that holds values, by zone and shade; then lines where the zones end."""
    counts = [0] * axis.n_cells
    for exponent, count in enumerate(line.hist, line.hist_first):
        counts[axis.cell(exponent)] += count
    total = sum(counts) or 1
    for i, count in enumerate(counts):
        if count:
            shade = sentences.level(count / total, N_LEVELS)
            yield f'<path class="{_zone(axis, i, zones)} s{shade}" d="M{i} 0h.9v1h-.9z"/>'
    ends = [axis.cell(end) for end in zones if axis.first < end < axis.first + axis.octaves * axis.n_cells]
    yield f'<path class="end" d="{"".join(f"M{x} 0v1" for x in ends)}"/>'


def _zone(axis: Axis, cell: int, zones: tuple[int, int, int]) -> str:
    middle = axis.first + axis.octaves * (cell + 0.5)
    return ("zero", "subnormal", "normal", "overflow")[sum(middle >= end for end in zones)]


def _axis_svg(found: Answer, axis: Axis) -> Markup:
    """Draw the exponents below the columns of cells."""
    every = max(1, round(axis.n_cells / 5))
    texts = (
        f'<text x="{(i + 0.5) * 300 / axis.n_cells:.0f}" y="11">2^{axis.first + i * axis.octaves}</text>'
        for i in range(every // 2, axis.n_cells, every)
    )
    return Markup(f'<svg class="axis" viewBox="0 0 300 14" aria-hidden="true">{"".join(texts)}</svg>')
