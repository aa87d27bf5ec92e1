"""The screen of `hypocenter check`: each finding as a compiler shows an error, readable without colour."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from hypocenter.nouns import Diagnosis
from hypocenter.report.caret import window
from hypocenter.report.outline import Entry, Excerpt, Outline, Recorded, outline
from hypocenter.report.rank_grid import RankGrid
from hypocenter.report.rank_table import drawn
from hypocenter.report.screen import PLAIN_WIDTH, Screen

suffix = ".txt"

_SEVERITY_STYLE = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_FRAME, _PATH, _TYPE_THIS = "blue", "cyan", "green"


def render(
    recorded: Recorded,
    diagnosis: Diagnosis,
    *,
    screen: Screen | None = None,
    notes: bool = False,
    seconds: float | None = None,
    closing: tuple[str, ...] = (),
    grid: RankGrid | None = None,
) -> str:
    """Return all findings, the grid of ranks, what is hidden, the summary, `closing`, and the next command to type."""
    screen = screen or Screen()
    ranks = list(drawn(grid, screen.width)) if grid is not None else []
    lines = _lines(outline(recorded, diagnosis, notes=notes, seconds=seconds), screen.width, ranks, closing)
    return to_text(lines, screen)


def render_html(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """Return the findings as an element of an HTML page, as a notebook shows it."""
    lines = _lines(outline(recorded, diagnosis), PLAIN_WIDTH, (), ())
    return as_html(*lines)


def as_html(*lines: Text | str) -> str:
    """Return lines as one HTML element in the colours of the screen; all that is not ours is escaped."""
    console = Console(file=io.StringIO(), record=True, width=PLAIN_WIDTH, highlight=False, markup=False, _environ={})
    for line in lines:
        console.print(line, soft_wrap=True)
    style = "background:#fff;color:#1b1f24;padding:10px 14px;line-height:1.35;overflow-x:auto"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def to_text(lines: Iterator[Text], screen: Screen) -> str:
    """Return styled lines as one string, with escape sequences only where the screen takes colour."""
    out = io.StringIO()
    console = Console(
        file=out, width=screen.width, force_terminal=screen.colour, highlight=False, markup=False, emoji=False,
        color_system="standard" if screen.colour else None, legacy_windows=False, soft_wrap=True, _environ={},
    )  # fmt: skip
    for line in lines:
        console.print(line, soft_wrap=True)
    return out.getvalue()


def _lines(report: Outline, width: int, ranks: Sequence[Text], closing: tuple[str, ...]) -> Iterator[Text]:
    for entry in report.entries:
        yield from _entry(entry, width)
        yield Text()
    if ranks:
        yield from (*ranks, Text())
    if report.status != "findings":
        yield from wrapped(Text(), Text(report.verdict, "bold"), width)
    for remark in report.remarks:
        yield from wrapped(Text("note: ", "cyan"), Text(remark), width)
    if report.hidden:
        shown, _, flag = report.hidden.rpartition("--")
        yield Text.assemble(shown, (f"--{flag}", _TYPE_THIS))
    summary = Text(report.summary)
    summary.highlight_regex(r"^[1-9][0-9,]* errors?", _SEVERITY_STYLE["error"])
    summary.highlight_regex(r"\b[1-9][0-9,]* warnings?", _SEVERITY_STYLE["warning"])
    for line in (summary, *map(Text, closing)):
        yield from wrapped(Text(), line, width)
    yield Text.assemble(f"{report.next_label}: ", (report.next_command, _TYPE_THIS))


def _entry(entry: Entry, width: int) -> Iterator[Text]:
    style = _SEVERITY_STYLE[entry.severity]
    gutter = len(str(entry.excerpt.line)) if entry.excerpt else 2
    pad = " " * gutter
    yield from wrapped(Text(f"{entry.severity}[{entry.code}]: ", style), Text(entry.title, "bold"), width, indent=4)
    yield from wrapped(Text(f"{pad}--> ", _FRAME), _place(entry), width)
    yield Text(f"{pad} |", _FRAME)
    if entry.excerpt:
        yield from excerpt_lines(entry.excerpt, entry.chips, style, gutter, width)
    elif entry.chips:
        yield from wrapped(Text(f"{pad} | ", _FRAME), Text(", ".join(entry.chips), style), width)
    if entry.excerpt or entry.chips:
        yield Text(f"{pad} |", _FRAME)
    for label, text in labelled(pad, ((point.label, point.text) for point in entry.points)):
        yield from wrapped(label, _marked(text, entry.subject), width)
    yield from _commands(entry, pad)


def labelled(pad: str, points: Iterable[tuple[str, str]]) -> Iterator[tuple[Text, str]]:
    """Yield labels as they stand below a finding, each once, and texts; a repeated label becomes a dash."""
    before = ""
    for label, text in points:
        style = "bold cyan" if label == "fix" else "bold"
        again = Text(f"{pad}{' ' * (len(label) + 3)}- ", _FRAME)
        yield again if label == before else Text.assemble((f"{pad} = ", _FRAME), (f"{label}: ", style)), text
        before = label


def _commands(entry: Entry, pad: str) -> Iterator[Text]:
    for index, typed in enumerate(entry.commands):
        label = Text.assemble((f"{pad} = ", _FRAME), ("see: ", "bold")) if index == 0 else Text(f"{pad}        ")
        yield label + Text(typed, _TYPE_THIS)  # never wrapped: a command must survive copy and paste


def _place(entry: Entry) -> Text:
    body = Text()
    if entry.place:
        body.append(entry.place, _PATH)
        body.append(" at ")
    body.append(entry.where)
    if entry.subject:
        start = len(body) - len(entry.subject)  # it is the end of `where`
        body.stylize(_PATH, start, start + len(entry.subject.partition(" ")[0]))
    return body


def _marked(text: str, subject: str) -> Text:
    body = Text(text)
    name = subject.partition(" ")[0]
    if len(name) > 2:
        _highlight(body, name)
    return body


def _highlight(body: Text, name: str) -> None:
    """Colour a name where it stands by itself: `loss` neither in `lossless` nor in `model.loss` or `loss-scale`."""
    body.highlight_regex(rf"(?<![\w.-]){re.escape(name)}(?!-?\w|\.\w)", _PATH)


def excerpt_lines(excerpt: Excerpt, chips: tuple[str, ...], style: str, gutter: int, width: int) -> Iterator[Text]:
    """Yield the source line, then carets below what went wrong with what it gave beside them."""
    room = max(width - gutter - 3, 20)
    text, start, stop = _fitting(excerpt, room)
    yield Text.assemble((f"{excerpt.line} | ", _FRAME), text)
    marker = Text.assemble((f"{' ' * gutter} | ", _FRAME), " " * cell_len(text[:start]))
    carets = Text("^" * max(cell_len(text[start:stop]), 1), style)
    told = ", ".join(chips)
    if marker.cell_len + carets.cell_len + 1 + cell_len(told) <= width:
        yield marker + carets + Text(f" {told}".rstrip(), style)
        return
    yield marker + carets
    yield from wrapped(Text(f"{' ' * gutter} | ", _FRAME), Text(told, style), width)


def _fitting(excerpt: Excerpt, room: int) -> tuple[str, int, int]:
    if cell_len(excerpt.text) <= room:
        return excerpt.text, excerpt.start, excerpt.stop
    return window(excerpt.text, excerpt.start, excerpt.stop, room)


def wrapped(label: Text, body: Text, width: int, indent: int | None = None) -> Iterator[Text]:
    """Yield `label` and `body` on as many lines as needed, the later ones indented to where the body began.

    A word is never broken: paths and names stay in one piece, wherever they end.
    """
    hang = min(label.cell_len if indent is None else indent, width // 3)
    pieces = _pieces(body, max(width - label.cell_len, 10), max(width - hang, 10))
    for index, piece in enumerate(pieces or [Text()]):
        piece.rstrip()
        yield Text.assemble(label if index == 0 else " " * hang, piece)


def _pieces(body: Text, first_room: int, room: int) -> list[Text]:
    """Cut `body` between words: a first piece of at most `first_room` columns, then of at most `room`."""
    cuts: list[int] = []
    used, left = 0, first_room
    for word in re.finditer(r"\s*\S+\s*", body.plain):
        if used and used + cell_len(word.group().rstrip()) > left:
            cuts.append(word.start())
            used, left = 0, room
        used += cell_len(word.group())
    return list(body.divide(cuts)) if cuts else [body.copy()]
