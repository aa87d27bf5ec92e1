"""The screen of `hypocenter diff`: the answer in one sentence, what it rests on, the rows that say most."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.compare.comparison import Comparison, RowComparison, SiteCard
from hypocenter.compare.sentences import place, power
from hypocenter.compare.verdict import counts_from
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.comparison.ranking import ranked, times, unmatched_sites
from hypocenter.report.formats.terminal import labelled, to_text, wrapped
from hypocenter.report.screen import Screen

suffix = ".txt"
ROWS = 12  # lines of each table on a screen before the rest is counted

_STYLES = {"same": "bold green", "diverged": "bold red", "cannot-tell": "bold yellow"}
_ROW_STYLES = {"differs": "red", "cannot-tell": "yellow"}
_FRAME, _PATH = "blue", "cyan"
_HEAD = ("verdict", "since", "worst", "phase", "site", "error", "floor", "times", "by")


def render(found: Comparison, screen: Screen | None = None, rows: int = ROWS) -> str:
    """Return the whole text, ready to print; `rows` at most in each table, 0 for all."""
    screen = screen or Screen()
    return to_text(_lines(found, screen, rows or len(found.rows) + 1_000_000), screen)


def _lines(found: Comparison, screen: Screen, most: int) -> Iterator[Text]:
    width = screen.width
    text = wording.sentence(found.sentence)
    n_words = 2 if text.startswith("cannot ") else 1
    head, rest = " ".join(text.split(" ")[:n_words]), " ".join(text.split(" ")[n_words:])
    yield from wrapped(Text(f"{head} ", _STYLES[found.status]), Text(rest, "bold"), width, indent=4)
    if found.first is not None and found.first.source is not None:
        yield Text.assemble(("   --> ", _FRAME), (wording.source_place(found.first.source), _PATH))
    for label, text in labelled("  ", _points(found)):
        yield from wrapped(label, Text(text), width)
    shown = [row for row in ranked(found) if row.verdict != "equal"]
    if shown:
        yield Text()
        yield from _table(shown, most, screen.room)
    for side, cards in (
        ("baseline", found.matching.unmatched_baseline),
        ("candidate", found.matching.unmatched_candidate),
    ):
        yield from _unmatched(side, cards, min(most, ROWS), width)
    yield Text()
    yield Text(_closing(found), "dim")


def _points(found: Comparison) -> Iterator[tuple[str, str]]:
    if found.cause is not None:
        yield "cause", f"{found.cause} ({found.confidence})" if found.cause != "unknown" else "unknown"
    if found.fit is not None and found.fit.fix:
        yield "fix", wording.sentence(found.fit.fix)
    for reason in found.why:
        yield "why", wording.sentence(reason)
    for note in found.notes:
        yield "note", wording.sentence(note)


def _table(rows: list[RowComparison], most: int, room: int | None) -> Iterator[Text]:
    right = frozenset({1, 2, 5, 6, 7})
    lines = list(aligned([_HEAD, *map(_cells, rows[:most])], right=right, room=room, name=4))
    yield Text(lines[0], "bold")
    for line, row in zip(lines[1:], rows, strict=False):
        yield Text(line, _ROW_STYLES.get(row.verdict, ""))
    for line in cut_rows(min(most, len(rows)), len(rows), "row", "see them with --rows 0 or --json"):
        yield Text(line)


def _cells(row: RowComparison) -> tuple[str, ...]:
    spot, other = row.pair.baseline[0], row.pair.candidate[0]
    name = wording.clean(place(spot.site, spot.port))
    more = f" +{len(row.pair.baseline) - 1}" if len(row.pair.baseline) > 1 else ""
    renamed = f" ({wording.clean(other.site)})" if other.site != spot.site else ""
    call = f" call {spot.call}" if spot.call else ""
    error = power(row.distance.relative) if row.distance is not None else "?"
    least = (
        "≥"
        if row.distance is not None
        and row.distance.depth == "summary"
        and row.distance.high == float("inf")
        and error != "inf"
        else ""
    )
    return (
        row.verdict, "-" if row.since is None else str(row.since), str(row.step), spot.phase,
        f"{name}{more}{call}{renamed}", f"{least}{error}", power(row.floor.relative), _times(times(row)), row.pair.by,
    )  # fmt: skip


def _times(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:.1e}"


def _unmatched(side: str, cards: tuple[SiteCard, ...], most: int, width: int) -> Iterator[Text]:
    sites = list(unmatched_sites(cards))
    if not sites:
        return
    yield Text()
    counts = f"{wording.count(len(cards), 'spot')} of {wording.count(len(sites), 'site')}"
    yield Text(f"without counterpart, of the {side}: {counts}")
    for site, ports in sites[:most]:
        some = ", ".join(dict.fromkeys(ports[:6])) + (", …" if len(ports) > 6 else "")
        yield from wrapped(Text("    "), Text(f"{wording.clean(place(site))}: {wording.clean(some)}"), width)
    for line in cut_rows(min(most, len(sites)), len(sites), "site", "see them with --rows 0 or --json"):
        yield Text(f"    {line}")


def _closing(found: Comparison) -> str:
    depth = f"at depth {found.depth}" if found.depth is not None else "nothing compared"
    n_floors = counts_from(found.floor_source, found)
    return (
        f"{wording.count(found.n_rows, 'row')} of {wording.count(len(found.matching.pairs), 'pair')} in "
        f"{wording.count(found.n_steps, 'step')} {depth}, {found.n_differ:,} differ; "
        f"noise floor {found.floor_source}, an error counts from {n_floors:.3g} times it"
    )
