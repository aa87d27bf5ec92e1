"""The screen of `hypocenter curves`: one sentence, the difference as a line, the rules, what to do now."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.compare.curves.comparison import Check, CurveComparison, CurveSide, Spike
from hypocenter.report import wording
from hypocenter.report.closing import sparkline
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

_STYLES = {"accepted": "bold green", "departed": "bold red", "cannot-tell": "bold yellow"}
_CHECK_STYLES = {"pass": "green", "fail": "red", "cannot-tell": "yellow", "skipped": "dim"}
_FRAME, _PATH, _TYPE_THIS = "blue", "cyan", "green"
_MOST_SPIKES, _MOST_NOTES = 5, 12
_DIGITS = 3


def render(found: CurveComparison, screen: Screen | None = None, *, can_draw: bool = True) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width, can_draw), screen)


def _lines(found: CurveComparison, width: int, can_draw: bool) -> Iterator[Text]:
    head, _, rest = wording.sentence(found.sentence).partition(": ")
    yield from wrapped(Text(f"{head}: ", _STYLES[found.status]), Text(rest, "bold"), width, indent=4)
    for side, curve in (("baseline", found.baseline), ("candidate", found.candidate)):
        yield from wrapped(Text(f"   --> {side}: ", _FRAME), Text(_of_side(curve), _PATH), width)
    for curve in found.noise:
        yield from wrapped(Text("   --> noise: ", _FRAME), Text(_of_side(curve), _PATH), width)
    if found.track.steps:
        yield from _drawn(found, width, can_draw)
    for reason in found.why:
        yield from wrapped(Text("    = why: ", _FRAME), Text(wording.sentence(reason)), width)
    yield from _table(found.checks)
    yield from _spikes(found.spikes, width)
    yield from _notes(found, width)
    for step in found.next:
        yield from wrapped(Text("next: ", "bold"), Text(wording.sentence(step), _TYPE_THIS), width)


def _of_side(curve: CurveSide) -> str:
    steps = ""
    if curve.first_step is not None and curve.last_step is not None:
        every = f", every {curve.interval}" if curve.interval > 1 else ""
        steps = f", {curve.first_step:,} to {curve.last_step:,}{every}"
    return f"{wording.clean(curve.source, 200)} ({curve.kind}, {wording.count(curve.n_points, 'logged step')}{steps})"


def _drawn(found: CurveComparison, width: int, can_draw: bool) -> Iterator[Text]:
    values = [value for value in found.track.difference if value is not None]
    line = sparkline(found.track.difference, max(width - 40, 20), ascii_only=not can_draw)
    extent = f"{_number(min(values))} to {_number(max(values))}" if values else ""
    yield Text(f"    difference {line} {extent}")


def _table(checks: tuple[Check, ...]) -> Iterator[Text]:
    if not checks:
        return
    rows = [("rule", "", "limit", "actual", "found")]
    rows += [(c.name, c.status, _number(c.limit), _number(c.actual), wording.sentence(c.text)) for c in checks]
    yield Text()
    for n, line in enumerate(aligned(rows, right=frozenset({2, 3}))):
        yield Text(line, "bold" if n == 0 else _CHECK_STYLES[checks[n - 1].status])


def _spikes(spikes: tuple[Spike, ...], width: int) -> Iterator[Text]:
    if not spikes:
        return
    yield Text()
    for spike in spikes[:_MOST_SPIKES]:
        where = "both" if spike.side == "both" else f"the {spike.side} only"
        batch = f", batch {spike.digest}" if spike.digest else ""
        text = f"step {spike.step:,} in {where}: loss {_number(spike.value)}, around it {_number(spike.usual)}{batch}"
        yield from wrapped(Text("spike: ", "bold"), Text(text), width)
    for line in cut_rows(min(len(spikes), _MOST_SPIKES), len(spikes), "spike", "see them with --json"):
        yield Text(line, "dim")


def _notes(found: CurveComparison, width: int) -> Iterator[Text]:
    problems = [
        f"{side}: {problem}"
        for side, curve in (("baseline", found.baseline), ("candidate", found.candidate))
        for problem in curve.problems
    ]
    texts = [*found.notes, *problems]
    for text in texts[:_MOST_NOTES]:
        yield from wrapped(Text("note: ", "blue"), Text(wording.sentence(text)), width)
    for line in cut_rows(min(len(texts), _MOST_NOTES), len(texts), "note", "see them with --json"):
        yield Text(line, "dim")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.{_DIGITS}g}" if abs(value) < 1e6 else f"{value:.{_DIGITS}g}"
