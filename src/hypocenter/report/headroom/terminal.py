"""The screen of `hypocenter headroom`: the answer in a sentence, then per phase the sites that lose most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from hypocenter.report import wording
from hypocenter.report.columns import cut_rows
from hypocenter.report.formats.terminal import to_text
from hypocenter.report.headroom import sentences
from hypocenter.report.headroom.answer import Answer, Line
from hypocenter.report.headroom.sentences import Axis, axis_of, level, shares
from hypocenter.report.screen import Screen

MOST_CELLS = 32
SITE_AT_LEAST = 26  # columns for the name before the cells get narrower
UNICODE, ASCII = " ░▒▓█", " .:*#"
MARKS = {"zero": "0", "subnormal": "s", "normal": "-", "overflow": "X"}
STYLES = {"zero": "red", "subnormal": "yellow", "normal": "green", "overflow": "bold red"}


def render(answer: Answer, screen: Screen, *, rows: int, has_unicode: bool = True) -> str:
    """Return everything as text no wider than the screen; `rows` lines per phase, 0 for all."""
    return to_text(_all(answer, screen.width, rows, has_unicode), screen)


def _all(answer: Answer, width: int, rows: int, has_unicode: bool) -> Iterator[Text]:
    style = {"fits": "bold green", "overflows": "bold red", "cannot-tell": "bold yellow"}[answer.status]
    yield from _wrapped(sentences.headline(answer), width, style)
    for total in answer.phases:
        lines = sentences.worst_first([x for x in answer.lines if x.phase == total.phase])
        yield Text()
        yield from _wrapped(sentences.phase_line(total), width, "bold")
        yield from _table(answer, lines[: rows or None], width, UNICODE if has_unicode else ASCII)
        for cut in cut_rows(
            min(rows or len(lines), len(lines)), len(lines), "site", "see them with --rows 0 or --json"
        ):
            yield Text(f"  {cut}")
    if answer.phases and any(x.hist for x in answer.lines):
        yield Text()
        yield from _legend(answer, UNICODE if has_unicode else ASCII, width)
    yield from _rest(answer, width, rows)


def _table(answer: Answer, lines: Sequence[Line], width: int, shades: str) -> Iterator[Text]:
    if all(x.known == "norm" for x in lines):
        for x in lines:
            yield Text(f"  {sentences.bits(x):>18}  norm {wording.number(x.absmax):<9}  ") + Text(sentences.place(x))
        return
    numbers = [(sentences.bits(x), *map(sentences.percent, (x.overflow, x.flushed, x.subnormal))) for x in lines]
    heads = ("headroom", "overflow", "zero", "subnormal")
    widths = [max(len(head), *(len(row[i]) for row in numbers)) for i, head in enumerate(heads)]
    used = sum(w + 2 for w in widths)
    axis = axis_of(answer.format, max(8, min(MOST_CELLS, width - used - SITE_AT_LEAST - 6)))
    head = Text("".join(f"  {h:>{w}}" for h, w in zip(heads, widths, strict=True)), "bright_black")
    yield Text.assemble(head, "  ", _marks(axis), "  ", ("site", "bright_black"))
    room = max(width - used - axis.n_cells - 4, 12)
    for x, row in zip(lines, numbers, strict=True):
        cells = Text("".join(f"  {cell:>{w}}" for cell, w in zip(row, widths, strict=True)))
        if x.overflows:
            cells.stylize("red")
        yield Text.assemble(
            cells,
            "  ",
            _strip(x, axis, shades),
            "  ",
            wording.shortened(sentences.place(x), room, "..." if shades.isascii() else "…"),
        )


def _marks(axis: Axis) -> Text:
    text = Text()
    for zone in axis.zones:
        text.append(MARKS[zone], STYLES[zone])
    return text


def _strip(line: Line, axis: Axis, shades: str) -> Text:
    text = Text()
    for share, zone in zip(shares(line, axis), axis.zones, strict=True):
        text.append(shades[level(share, len(shades))], STYLES[zone])
    return text


def _legend(answer: Answer, shades: str, width: int) -> Iterator[Text]:
    axis = axis_of(answer.format, MOST_CELLS)
    octaves = f"{axis.octaves} octaves" if axis.octaves > 1 else "one octave"
    yield from _wrapped(
        f"cells: magnitudes by exponent, {octaves} each: 0 would become zero, s subnormal, - normal, X overflows; "
        f"{shades[1]} below 0.1 % of the nonzero values, {shades[2]} 1 %, {shades[3]} 10 %, {shades[4]} above",
        width,
        "bright_black",
    )


def _rest(answer: Answer, width: int, rows: int) -> Iterator[Text]:
    told = list(sentences.window_lines(answer))
    if told:
        yield Text()
    for line in told:
        yield from _wrapped(line, width, "")
    if answer.reductions:
        yield Text()
        yield from _wrapped("reductions near their limit:", width, "bold")
    for reduction in answer.reductions[: rows or None]:
        where = f"{reduction.site or '(model)'} {reduction.op} at step {reduction.step}"
        yield from _wrapped(f"{wording.clean(where)}: {reduction.sentence(answer.format)}", width, "", indent=2)
        if reduction.source:
            yield from _wrapped(wording.clean(reduction.source.strip()), width, "cyan", indent=4)
    n = len(answer.reductions)
    for cut in cut_rows(min(rows or n, n), n, "reduction", "see them with --rows 0 or --json"):
        yield Text(f"  {cut}")
    for note in answer.notes:
        yield from _wrapped(f"note: {note}", width, "cyan")


def _wrapped(text: str, width: int, style: str, indent: int = 0) -> Iterator[Text]:
    """Break the text into lines no wider than the screen, later ones indented by two more."""
    line = " " * indent
    for word in text.split(" "):
        if line.strip() and cell_len(line) + 1 + cell_len(word) > width:
            yield Text(line, style)
            line = " " * (indent + 2) + word
        else:
            line = f"{line} {word}" if line.strip() else line + word
    yield Text(line, style)
