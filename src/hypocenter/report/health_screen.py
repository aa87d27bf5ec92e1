"""The screen of `hypocenter health`: what is out of range in words, then a table of layers and measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from hypocenter.diagnose.health import WHOLE, Answer, Measured, measures
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

_STYLES = {"in-range": "bold green", "out-of-range": "bold yellow", "cannot-tell": "bold magenta"}
_MOST = 20  # lines about what is out of range
_LAYERS = 40


def render(found: Answer, screen: Screen | None = None) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Answer, width: int) -> Iterator[Text]:
    head = Text(f"{found.status.replace('-', ' ')}: ", _STYLES[found.status])
    yield from wrapped(head, Text(found.sentence, "bold"), width, indent=4)
    out = [value for value in found.values if value.status == "out-of-range"]
    if out:
        yield Text()
        for value in out[:_MOST]:
            place = f" {value.site or WHOLE}" + (f" (rank {value.rank})" if value.rank else "")
            says = Text.assemble((value.measure, "yellow"), wording.clean(f"{place}: {value.says}"))
            yield from wrapped(Text("  "), says, width, indent=6)
        yield from map(Text, cut_rows(min(_MOST, len(out)), len(out), "value", "see them with --json"))
    if found.values:
        yield Text()
        yield from _table(found.values, width)
    missing: dict[tuple[str, str], list[str]] = {}
    for one in found.missing:
        missing.setdefault((one.why, one.option), []).append(one.measure)
    if missing:
        yield Text()
    for (why, option), names in missing.items():
        more = f"; hypocenter {option} records it" if option else ""
        yield from wrapped(Text("not measured: "), Text(f"{', '.join(names)} ({why}{more})"), width, indent=2)


def _table(values: Sequence[Measured], width: int) -> Iterator[Text]:
    """Yield a table with a row per layer and a column per measure; a cell has the value that is farthest out."""
    columns = [(entry.name, entry.column) for entry in measures() if any(v.measure == entry.name for v in values)]
    columns += [(name, name) for name in dict.fromkeys(v.measure for v in values) if name not in dict(columns)]
    cells: dict[str, dict[str, Measured]] = {}
    for value in values:
        cells.setdefault(value.layer, {}).setdefault(value.measure, value)
    bad = {layer for layer, row in cells.items() if any(value.status == "out-of-range" for value in row.values())}
    layers = sorted(cells, key=lambda layer: (layer not in bad, _numbered(layer)))
    shown = layers[:_LAYERS]
    room = width - max(len(layer) for layer in [*shown, "layer"]) - 2
    for part in _parts(columns, shown, cells, room):
        rows = [("layer", *(column for _, column in part))]
        rows += [(layer, *(_cell(cells[layer].get(name)) for name, _ in part)) for layer in shown]
        texts = [tuple(map(wording.clean, row)) for row in rows]
        yield from map(Text, aligned(texts, right=frozenset(range(1, len(part) + 1))))
        yield Text()
    yield from map(Text, cut_rows(len(shown), len(layers), "layer", "see them with --json"))
    yield Text("! out of range; each cell: the farthest value of that layer", "dim")


def _parts(
    columns: Sequence[tuple[str, str]], layers: Sequence[str], cells: Mapping[str, Mapping[str, Measured]], room: int
) -> Iterator[list[tuple[str, str]]]:
    """Divide the columns into parts that fit beside each other on the screen."""
    part: list[tuple[str, str]] = []
    used = 0
    for name, column in columns:
        needed = 2 + max(len(column), *(len(_cell(cells[layer].get(name))) for layer in layers))
        if part and used + needed > room:
            yield part
            part, used = [], 0
        part.append((name, column))
        used += needed
    yield part


def _cell(value: Measured | None) -> str:
    if value is None:
        return ""
    mark = "! " if value.status == "out-of-range" else ""
    return f"{mark}{value.value:.3g}"


def _numbered(layer: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts the model itself first, then layers, layer 2 before layer 10."""
    if layer == WHOLE:
        return ()
    return tuple((int(word), "") if word.isdigit() else (-1, word) for word in layer.split("."))
