"""The screen of `hypocenter determinism`: what did not repeat first, its line, who else drew, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.compare.repeats.answer import Determinism, Origin
from hypocenter.compare.repeats.origins import moment
from hypocenter.report import wording
from hypocenter.report.caret import span
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.formats.terminal import excerpt_lines, to_text, wrapped
from hypocenter.report.outline import Excerpt
from hypocenter.report.screen import Screen

ROWS = 12  # lines of a table before the rest is counted

_ALL_NOTED = 16  # draws of one line of Python that are all noted (tap/draws.py)

_STYLES = {"deterministic": "bold green", "differs": "bold red", "cannot-tell": "bold yellow"}
_FRAME, _PATH, _TYPE_THIS = "blue", "cyan", "green"
_DRAWS = ("op", "draws from", "where", "when", "times")
_ALSO = ("op", "cause", "where", "when", "times")


def render(found: Determinism, screen: Screen | None = None, *, next_command: str = "") -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width, next_command), screen)


def _lines(found: Determinism, width: int, next_command: str) -> Iterator[Text]:
    head, _, rest = wording.sentence(found.sentence).partition(": ")
    yield from wrapped(Text(f"{head}: ", _STYLES[found.status]), Text(rest, "bold"), width, indent=4)
    if found.first is not None:
        yield from _framed(found, found.first, width)
    yield from _table("drew from a generator without a fixed seed", _DRAWS, list(map(_draw_cells, found.draws)))
    yield from _table("do not repeat either", _ALSO, list(map(_also_cells, found.also)))
    for note in found.notes:
        yield from wrapped(Text("note: ", "blue"), Text(wording.sentence(note)), width)
    yield Text()
    yield Text(_closing(found), "dim")
    if next_command:
        yield Text.assemble(("next: ", "bold"), (next_command, _TYPE_THIS))


def _framed(found: Determinism, first: Origin, width: int) -> Iterator[Text]:
    source = first.source
    excerpt = _excerpt(first)
    gutter = len(str(excerpt.line)) if excerpt is not None else 2
    pad = " " * gutter
    link = ", " if first.phase == "setup" else " at "
    where = Text.assemble((wording.source_place(source), _PATH), link) if source is not None else Text()
    yield from wrapped(Text(f"{pad}--> ", _FRAME), where + Text(_where(first, found.n_ranks)), width)
    if excerpt is not None:
        yield Text(f"{pad} |", _FRAME)
        yield from excerpt_lines(excerpt, (first.op,), "bold red", gutter, width)
        yield Text(f"{pad} |", _FRAME)
    for label, text in _points(found, first):
        yield from wrapped(Text.assemble((f"{pad} = ", _FRAME), (f"{label}: ", "bold")), Text(text), width)


def _excerpt(first: Origin) -> Excerpt | None:
    if first.source is None or not first.source.text:
        return None
    start, stop = span(first.source.text, first.op)
    return Excerpt(line=first.source.line, text=first.source.text, start=start, stop=stop)


def _where(first: Origin, n_ranks: int) -> str:
    parts = [moment(first.phase, first.step)]
    if first.worker is not None:
        parts.append(f"worker {first.worker} of a DataLoader")
    if n_ranks > 1:
        parts.append(f"rank {first.rank} of {n_ranks}")
    if first.param:
        parts.append(f"sets up {wording.clean(first.param)}")
    elif first.site:
        parts.append(f"{wording.clean(first.site)}{f' ({first.module})' if first.module else ''}")
    return ", ".join(parts)


def _points(found: Determinism, first: Origin) -> Iterator[tuple[str, str]]:
    for reason in first.why:
        yield "why", wording.sentence(reason)
    results = found.results
    count = f"{results.n_differ:,} of {results.n:,} losses, gradients and parameters differ"
    yield "then", f"{count}, the first is the {wording.clean(results.first)}"
    yield "cause", f"{first.cause} ({first.confidence})"
    if first.fix:
        yield "fix", wording.sentence(first.fix)
    if found.cure is not None:
        yield "cure", wording.sentence(found.cure.text)


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[Text]:
    if not rows:
        return
    yield Text()
    yield Text(f"{title}:")
    for n, line in enumerate(aligned([head, *rows[:ROWS]], right=frozenset({4}))):
        yield Text(f"  {line}", "bold" if n == 0 else "")
    for line in cut_rows(min(ROWS, len(rows)), len(rows), "line", "see them with --json"):
        yield Text(f"  {line}", "dim")


def _draw_cells(origin: Origin) -> tuple[str, ...]:
    more = "+" if origin.n > _ALL_NOTED and not origin.op.startswith("aten.") else ""
    return (_op(origin), origin.generator, _place(origin), _when(origin), f"{origin.n:,}{more}")


def _also_cells(origin: Origin) -> tuple[str, ...]:
    return (_op(origin), origin.cause, _place(origin), _when(origin), f"{origin.n:,}")


def _op(origin: Origin) -> str:
    return wording.clean(origin.op.removesuffix(".default"))


def _place(origin: Origin) -> str:
    if origin.source is not None:
        name = origin.source.file.replace("\\", "/").rpartition("/")[2]
        return f"{wording.clean(name)}:{origin.source.line}"
    return wording.clean(origin.site) or "not seen"


def _when(origin: Origin) -> str:
    worker = f", worker {origin.worker}" if origin.worker is not None else ""
    return f"{moment(origin.phase, origin.step)}{worker}"


def _closing(found: Determinism) -> str:
    ranks = f", {wording.count(found.n_ranks, 'rank')}" if found.n_ranks > 1 else ""
    return (
        f"{wording.count(len(found.runs), 'run')} of {wording.count(found.n_steps, 'step')}{ranks}, "
        f"{found.n_events:,} operators, draws and results compared bit for bit"
    )
