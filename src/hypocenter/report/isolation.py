"""In: an Isolation. Out: the screen of `hypocenter isolate`."""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.compare.isolation.isolated import Isolated, Isolation
from hypocenter.compare.sentences import place, power
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows

ROWS = 20  # modules on a screen before the rest is counted
_HEAD = ("verdict", "module", "class", "port", "own error", "floor", "times", "how")


def in_words(found: Isolation, most: int = ROWS) -> Iterator[str]:
    """Yield the sentence, the modules worst first (`most` 0: all), and what could not be read."""
    yield wording.sentence(found.sentence)
    rows = found.modules[: most or None]
    if rows:
        yield ""
        yield from aligned([_HEAD, *map(_cells, rows)], right=frozenset({4, 5, 6}))
        yield from cut_rows(len(rows), len(found.modules), "module", "see them with --rows 0 or --json")
    for note in found.notes:
        yield f"note: {wording.sentence(note)}"


def _cells(one: Isolated) -> tuple[str, ...]:
    name = wording.clean(place(one.site)) + (f" call {one.call}" if one.call else "")
    renamed = f" ({wording.clean(one.candidate_site)})" if one.candidate_site != one.site else ""
    verdict = "own, innermost" if one.innermost else one.verdict
    how = ": ".join(word for word in (one.how, one.why) if word)
    return (
        verdict, f"{name}{renamed}", one.kind, one.port, "?" if one.error is None else power(one.error),
        "?" if one.floor is None else power(one.floor), "" if one.error is None else f"{one.times:,.1f}", how,
    )  # fmt: skip
