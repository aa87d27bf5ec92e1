"""The screen of `hypocenter twin`: the answer, what it rests on, what was restored, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.text import Text

from hypocenter.report import determinism_screen, wording
from hypocenter.report.columns import aligned
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen
from hypocenter.twins.answer import Restored, Twin
from hypocenter.twins.change import Change
from hypocenter.twins.runs import from_here

_STYLES = {"same": "bold green", "differs": "bold red", "cannot-tell": "bold yellow"}
_TYPE_THIS = "green"
_HEAD = ("begins with", "", "equal", "")


def render(found: Twin, screen: Screen | None = None) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    if found.repeats is not None and found.status != "same" and found.change == "nothing":
        return determinism_screen.render(found.repeats, screen)
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Twin, width: int) -> Iterator[Text]:
    head, _, rest = wording.sentence(found.sentence).partition(": ")
    yield from wrapped(Text(f"{head}: ", _STYLES[found.status]), Text(rest, "bold"), width, indent=4)
    for label, text in _points(found):
        yield from wrapped(Text.assemble(("   = ", "blue"), (f"{label}: ", "bold")), Text(text), width)
    if found.restored:
        yield Text()
        rows = [_HEAD, *map(_cells, found.restored)]
        yield from (Text(f"  {line}", "bold" if n == 0 else "") for n, line in enumerate(aligned(rows)))
    for note in found.notes:
        yield from wrapped(Text("note: ", "blue"), Text(wording.sentence(note)), width)
    yield Text()
    yield Text(
        f"runs: {', '.join(f'{run.name} ({wording.clean(from_here(Path(run.path)))})' for run in found.runs)}", "dim"
    )
    if found.next:
        yield Text.assemble(("next: ", "bold"), (wording.clean(found.next), _TYPE_THIS))


def _cells(row: Restored) -> tuple[str, ...]:
    count = f"{row.n_equal} of {row.n}" if row.n else ""
    return row.what, row.verdict, count, wording.clean(row.said or row.first)


def _points(found: Twin) -> Iterator[tuple[str, str]]:
    if found.first is not None and found.first.source is not None:
        yield "line", wording.source_place(found.first.source)
    yield from (("why", wording.sentence(reason)) for reason in found.why)
    if found.cause:
        yield "cause", f"{found.cause} ({found.confidence})"
    if found.status == "differs" and found.means:
        yield "means", wording.sentence(found.means)
    if found.fix:
        yield "fix", wording.sentence(found.fix)


def listed(changes: Iterable[Change]) -> str:
    """Return the text that `hypocenter twin --list` prints."""
    rows = [(f"{one.name}[={one.values}]" if one.values else one.name, one.manual.message) for one in changes]
    return "".join(f"{line}\n" for line in aligned(rows)) + "\nmore of one: hypocenter explain NAME\n"
