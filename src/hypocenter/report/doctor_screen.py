"""The screen of `hypocenter doctor`: the answer in one sentence, a line for each check, the lines to paste."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from hypocenter.doctor.answer import Answer, Check
from hypocenter.report import wording
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

suffix = ".txt"

_AREAS = ("itself", "toolkits", "settings", "communication", "arithmetic")
_MARKS = {"ok": "✓", "warning": "!", "problem": "✗", "cannot-tell": "?"}
_PLAIN_MARKS = {**_MARKS, "ok": "+", "problem": "x"}  # for a stream whose encoding lacks the others
_STYLES = {"ok": "green", "warning": "bold yellow", "problem": "bold red", "cannot-tell": "bold cyan"}
_HEAD = {"healthy": "bold green", "problems": "bold red", "cannot-tell": "bold yellow"}
_WIDEST_TITLE = 26  # columns


def render(found: Answer, screen: Screen | None = None, *, can_draw: bool = True) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width, _MARKS if can_draw else _PLAIN_MARKS), screen)


def _lines(found: Answer, width: int, marks: dict[str, str]) -> Iterator[Text]:
    yield from _headline(found, width)
    shown = [check for check in found.checks if check.status != "not-applicable"]
    titles = [wording.clean(check.title) for check in shown]
    room = min(max((cell_len(title) for title in titles), default=0), _WIDEST_TITLE)
    pasted: set[str] = set()
    several = len({check.host for check in shown if check.host}) > 1
    for area in _AREAS:
        checks = [check for check in shown if check.area == area]
        if checks:
            yield Text()
            yield Text(area, "bold")
        for check in checks:
            yield from _check(check, room, width, marks, several)
            yield from _fix(check, pasted)
    yield from _closing(found, width)


def _headline(found: Answer, width: int) -> Iterator[Text]:
    text = wording.sentence(found.sentence)
    head, colon, rest = text.partition(":")
    yield from wrapped(Text(f"{head}{colon}", _HEAD[found.status]), Text(rest, "bold"), width, indent=2)


def _check(check: Check, room: int, width: int, marks: dict[str, str], several: bool) -> Iterator[Text]:
    title = wording.clean(check.title)
    place = _place(check, several)
    what = (
        check.what.removeprefix(check.title)
        if check.what.startswith((f"{check.title}=", f"{check.title} "))
        else check.what
    )
    what = f"{place}: {what.strip()}" if place else what.strip()
    label = Text.assemble(
        "  ", (marks[check.status], _STYLES[check.status]), f" {title}{' ' * (room - cell_len(title))}  "
    )
    yield from wrapped(label, Text(wording.sentence(what)), width, indent=room + 6)
    if check.status == "ok":
        return
    if check.why:
        yield from wrapped(Text("      why: ", "blue"), Text(wording.sentence(check.why)), width)


def _fix(check: Check, pasted: set[str]) -> Iterator[Text]:
    """Yield the lines to paste, none twice, never wrapped: a line stays one line."""
    if check.status == "ok" or not check.fix:
        return
    lines = [wording.clean(line, at_most=1 << 30) for line in check.fix if line not in pasted]
    if len(lines) < len(check.fix):
        lines = [*lines, "# and the lines above" if lines else "the lines above"]
    pasted.update(check.fix)
    for index, line in enumerate(lines):
        yield Text.assemble(("      fix: " if index == 0 else "           ", "blue"), (line, "green"))


def _place(check: Check, several: bool) -> str:
    host = wording.clean(check.host) if several and check.host else ""
    if check.rank is None or f"rank {check.rank}" in check.what:
        return host
    return f"rank {check.rank} on {host}" if host else f"rank {check.rank}"


def _closing(found: Answer, width: int) -> Iterator[Text]:
    absent = [wording.clean(check.title) for check in found.checks if check.status == "not-applicable"]
    if absent or found.notes:
        yield Text()
    for note in found.notes:
        yield from wrapped(Text("note: ", "cyan"), Text(wording.sentence(note)), width)
    if absent:
        titles = f"{', '.join(dict.fromkeys(absent))} (why: --json)"
        yield from wrapped(Text("not looked at: ", "dim"), Text(titles, "dim"), width)
