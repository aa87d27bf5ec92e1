"""All ranks of a large job as one picture: a square for each, where it stands, in the colour of what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from hypocenter.report.rank_grid import WORST_FIRST, Cell, Mark, details, places_of
from hypocenter.report.rank_state import RankState

_SIDE, _GAP, _HEAD, _LEFT = 7, 10, 30, 58  # pixels: a square, between blocks, above and beside all
_WIDEST = 1180  # pixels: the page is not wider
_HIGHEST = (
    64,
    96,
    128,
    192,
    256,
    512,
    1024,
    1 << 20,
)  # rows below each other: the fewest with which it is not too wide
_LABEL = 44  # pixels that the name of a strip takes
_TOLD = 256  # ranks with a tip of their own: those that something became of


@dataclass(frozen=True, slots=True)
class _Square:
    x: int
    y: int
    mark: Mark
    state: RankState


def rank_map(states: Sequence[RankState], marks: Mapping[int, Mark]) -> Markup:
    """Return an SVG of a job: blocks are pipeline stages, rows data-parallel, columns tensor-parallel places.

    Args:
        states: of all ranks.
        marks: by rank.
    """
    blocks = places_of(states)
    columns = {title: [*dict.fromkeys(c for row in rows.values() for c in row)] for title, rows in blocks.items()}
    steps = {title: len(names) * _SIDE + (4 if len(names) > 2 else 2) for title, names in columns.items()}

    def width(high: int) -> int:
        return _LEFT + sum(-(-len(rows) // high) * steps[title] + _GAP for title, rows in blocks.items())

    high = next((rows for rows in _HIGHEST if width(rows) <= _WIDEST), _HIGHEST[-1])
    squares, texts, x = list[_Square](), list[str](), _LEFT
    for title, rows in blocks.items():
        texts.append(_text(x, 11, title))
        names, free = [*rows], x
        for first in range(0, len(names), high):
            if x >= free and len(names) > high:
                texts.append(_text(x, 25, names[first]))
                free = x + _LABEL
            for at, name in enumerate(names[first : first + high]):
                y = _HEAD + at * _SIDE
                if x == _LEFT and at % 8 == 0:
                    texts.append(_text(x - 6, y + _SIDE, name[:9], "end"))
                squares += [
                    _Square(x + n * _SIDE, y, marks[rows[name][column].rank], rows[name][column])
                    for n, column in enumerate(columns[title]) if column in rows[name]
                ]  # fmt: skip
            x += steps[title]
        x += _GAP
    bottom = max((square.y for square in squares), default=_HEAD) + _SIDE + 2
    lines = "".join(f"M{at} {_HEAD}V{bottom}" for at in sorted({square.x for square in squares}))
    lines += "".join(f"M{_LEFT} {at}H{x}" for at in range(_HEAD, bottom, _SIDE))
    return Markup(
        f'<svg class="rank-map" viewBox="0 0 {x} {bottom}" width="{x}" height="{bottom}" role="img" '
        f'aria-label="all {len(states):,} ranks where they stand">'
        f'{"".join(texts)}{"".join(_paths(squares))}<path class="lines" d="{lines}"/>{"".join(_tips(squares))}</svg>'
    )


def _paths(squares: Sequence[_Square]) -> list[str]:
    """Return a path for each mark; squares side by side are one rectangle."""
    found: dict[Mark, list[str]] = {}
    begin = end = None
    for square in [*squares, None]:
        if begin is not None and end is not None:
            if square is not None and (square.y, square.mark, square.x) == (end.y, begin.mark, end.x + _SIDE):
                end = square
                continue
            wide = end.x + _SIDE - begin.x
            found.setdefault(begin.mark, []).append(f"M{begin.x} {begin.y}h{wide}v{_SIDE}h-{wide}z")
        begin = end = square
    return [f'<path class="{mark}" d="{"".join(found[mark])}"/>' for mark in reversed(WORST_FIRST) if mark in found]


def _tips(squares: Sequence[_Square]) -> list[str]:
    told = [square for square in squares if square.mark != "healthy"]
    told.sort(key=lambda square: (WORST_FIRST.index(square.mark), square.state.rank))
    cells = [Cell(states=(s.state,), mark=s.mark, step=s.state.first_bad_step) for s in told[:_TOLD]]
    return [
        f'<path class="tip-of" d="M{s.x} {s.y}h{_SIDE}v{_SIDE}h-{_SIDE}z">'
        f"<title>{escape(', '.join(details(cell)))}</title></path>"
        for s, cell in zip(told, cells, strict=False)
    ]


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
