"""The screen of `hypocenter weights diff`: one sentence, the tensors that say most, what only one side has."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.compare.weights.diff import Side, TensorComparison, Unmatched, WeightsComparison
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

ROWS = 12  # lines of each table on a screen before the rest is counted

_STYLES = {"same": "bold green", "diverged": "bold red", "cannot-tell": "bold yellow"}
_ROW_STYLES = {"differs": "red", "cannot-tell": "yellow"}
_RANK = {"differs": 0, "cannot-tell": 1, "within-ulp": 2, "equal-after-cast": 3, "equal": 4}
_HEAD = ("verdict", "tensor", "was", "layout", "max abs", "max rel", "rel L2", "cosine", "ulp", "first", "by")
_HOW = "see them with --limit 0 or --json"


def render(found: WeightsComparison, screen: Screen | None = None, limit: int = ROWS) -> str:
    """Return the whole text, ready to print; `limit` lines at most in each table, 0 for all."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width, limit or 1 << 60), screen)


def _lines(found: WeightsComparison, width: int, most: int) -> Iterator[Text]:
    head, _, rest = wording.sentence(found.sentence).partition(": ")
    yield from wrapped(Text(f"{head}: ", _STYLES[found.status]), Text(rest, "bold"), width, indent=4)
    for name, side in (("baseline", found.baseline), ("candidate", found.candidate)):
        yield from wrapped(Text(f"   --> {name}: ", "blue"), Text(_of_side(side), "cyan"), width)
        for note in side.notes:
            yield from wrapped(Text("   = note: ", "blue"), Text(wording.sentence(note)), width)
    for note in found.notes:
        yield from wrapped(Text("   = note: ", "blue"), Text(wording.sentence(note)), width)
    shown = sorted((row for row in found.tensors if row.difference.verdict != "equal"), key=_rank)
    yield from _table(shown, most)
    for name, left in (("baseline", found.unmatched_baseline), ("candidate", found.unmatched_candidate)):
        yield from _unmatched(name, left, most)
    if found.ignored:
        names = ", ".join(wording.clean(name) for name in found.ignored[:3])
        more = ", …" if len(found.ignored) > 3 else ""
        yield Text(f"{wording.count(len(found.ignored), 'computed buffer')} left out: {names}{more}", "dim")


def _of_side(side: Side) -> str:
    size = wording.byte_size(side.n_bytes)
    return f"{wording.clean(side.path, 200)} ({side.kind}, {wording.count(side.n_tensors, 'tensor')}, {size})"


def _rank(row: TensorComparison) -> tuple[int, float]:
    return _RANK[row.difference.verdict], -row.difference.relative_l2


def _table(rows: list[TensorComparison], most: int) -> Iterator[Text]:
    if not rows:
        return
    yield Text()
    lines = list(aligned([_HEAD, *map(_cells, rows[:most])], right=frozenset({4, 5, 6, 7, 8})))
    yield Text(lines[0], "bold")
    for line, row in zip(lines[1:], rows, strict=False):
        yield Text(line, _ROW_STYLES.get(row.difference.verdict, ""))
    for line in cut_rows(min(most, len(rows)), len(rows), "tensor", _HOW):
        yield Text(line)


def _cells(row: TensorComparison) -> tuple[str, ...]:
    apart = row.difference
    was = "" if row.baseline == (row.candidate,) else wording.clean(row.baseline[0])
    was += f" +{len(row.baseline) - 1}" if len(row.baseline) > 1 else ""
    dtypes = "" if row.dtypes[0] == row.dtypes[1] else f" {row.dtypes[0]}→{row.dtypes[1]}"
    numbers = ("", "", "", "", "") if apart.verdict == "cannot-tell" else (
        f"{apart.max_abs:.2g}", f"{apart.max_rel:.2g}", f"{apart.relative_l2:.2g}",
        "" if apart.cosine is None else f"{apart.cosine:.6f}", "" if apart.max_ulp is None else f"{apart.max_ulp:,}",
    )  # fmt: skip
    first = apart.why or ("" if apart.first_index is None else str(list(apart.first_index)))
    layout = "" if row.layout.kind == "identity" else row.layout.kind
    return apart.verdict, wording.clean(row.candidate), was, f"{layout}{dtypes}".strip(), *numbers, first, row.by


def _unmatched(side: str, left: tuple[Unmatched, ...], most: int) -> Iterator[Text]:
    if not left:
        return
    yield Text()
    yield Text(f"only in the {side}: {wording.count(len(left), 'tensor')}", "bold")
    for entry in left[:most]:
        yield Text(f"    {wording.clean(entry.name)}  {entry.dtype} {wording.shape(entry.shape)}")
    for line in cut_rows(min(most, len(left)), len(left), "tensor", _HOW):
        yield Text(f"    {line}")
