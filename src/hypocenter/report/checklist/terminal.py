"""The screen of `hypocenter checklist`: the answer in one sentence, then what differs, group by group, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from hypocenter.checklist.checklist import Checklist, Remark, Row, Scalar, Setting, Value
from hypocenter.checklist.items.item import GROUPS
from hypocenter.report import wording
from hypocenter.report.columns import cut_rows
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

UNKNOWN = 8  # keys of a side that no table knows, on a screen before the rest is counted
FOLDED_ABOVE = 3  # rows of a group that only one side says: more are one paragraph
_STATUS = {"same": "bold green", "different": "bold red", "cannot-tell": "bold yellow"}
_MARKS = {
    "different": "✗", "cannot-tell": "?", "only-baseline": "<", "only-candidate": ">", "equivalent": "≈", "same": "=",
    "not-set": " ",
}  # fmt: skip
_PLAIN = {"✗": "x", "≈": "~"}
_TELLS = {
    "different": "differ", "cannot-tell": "cannot be told", "only-baseline": "baseline only",
    "only-candidate": "candidate only", "equivalent": "mean the same", "same": "same",
}  # fmt: skip
_STYLES = {"different": "red", "cannot-tell": "yellow", "only-baseline": "", "only-candidate": "", "equivalent": ""}
_HALVES = {"only-baseline": "baseline", "only-candidate": "candidate"}
_WEIGHT = {"error": "red", "warning": "yellow", "note": "dim"}
_FRAME, _PATH, _TYPE_THIS = "blue", "cyan", "green"
_TITLE_SHARE = 0.40  # of the width, for titles; the rest is for the two values


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How much is shown, on which screen, and how groups are headed."""

    screen: Screen = field(default_factory=Screen)
    all_rows: bool = False
    has_unicode: bool = True
    headings: Mapping[str, str] = field(default_factory=dict[str, str])


def render(found: Checklist, view: View | None = None) -> str:
    """Return the whole text, ready to print."""
    view = view or View()
    return to_text(_lines(found, view), view.screen)


def is_shown(row: Row) -> bool:
    """Return whether a row gets a line when not all are asked for: not what is the same, computed, or minor."""
    if row.verdict in ("different", "cannot-tell") or _remarks(row, all_rows=False):
        return True
    if row.verdict == "equivalent":
        return not _is_arithmetic(row)
    return row.verdict.startswith("only-") and row.severity == "error"


def _is_arithmetic(row: Row) -> bool:
    """Return whether both sides have one value, computed on one of them: nothing to read about."""
    derived = [
        setting is not None and setting.derived is not None for setting in (row.baseline_setting, row.candidate_setting)
    ]
    return any(derived) and row.baseline == row.candidate


def _lines(found: Checklist, view: View) -> Iterator[Text]:
    width = view.screen.width
    text = wording.sentence(found.sentence)
    n_words = 2 if text.startswith("cannot ") else 1
    head, rest = " ".join(text.split(" ")[:n_words]), " ".join(text.split(" ")[n_words:])
    yield from wrapped(Text(f"{head} ", _STATUS[found.status]), Text(rest, "bold"), width, indent=4)
    for name, label, kinds, _ in sides(found):
        kind = f" ({', '.join(kinds)})" if kinds else ""
        body = Text.assemble((wording.clean(label), _PATH), wording.clean(kind))
        yield from wrapped(Text(f"   --> {name + ':':<11}", _FRAME), body, width)
    for note in found.notes:
        yield from wrapped(Text("   = note: ", _FRAME), Text(wording.sentence(note)), width)
    shown = [row for row in found.rows if view.all_rows or is_shown(row)]
    shown = [row for row in shown if row.verdict != "not-set" or view.all_rows]
    yield from _table(found, shown, view)
    yield from _samples(found, width)
    for name, _, _, keys in sides(found):
        yield from _unknown(name, [unknown(setting) for setting in keys], view)
    yield Text()
    yield from _closing(found, shown, view)


def _table(found: Checklist, shown: list[Row], view: View) -> Iterator[Text]:
    if not shown:
        return
    title_width, value_width = _widths(view.screen.width)
    for i, (group, rows) in enumerate(in_groups(found, shown)):
        yield Text()
        heading = _fitted(view.headings.get(group, group), title_width + 4)
        if i == 0:
            columns = f"{'baseline':<{value_width}}  candidate"
            yield Text.assemble((heading, "bold"), "  ", (columns, "dim"))
        else:
            yield Text(heading.rstrip(), "bold")
        unset = [row for row in rows if row.verdict == "not-set" and not row.remarks]
        folded = {row.item for row in unset} if view.all_rows else _folded(rows)
        for row in rows:
            if row.item not in folded:
                yield from _row(row, view, title_width, value_width)
        for verdict in _HALVES:
            yield from _fold([row for row in rows if row.item in folded and row.verdict == verdict], verdict, view)
        if unset:
            titles = "; ".join(wording.clean(row.title) for row in unset)
            yield from wrapped(Text("    neither side says: ", "dim"), Text(titles, "dim"), view.screen.width, indent=6)


def _folded(rows: list[Row]) -> set[str]:
    """Return the items that only one side has, if they are so many that one paragraph tells them all."""
    halves = [[row.item for row in rows if row.verdict == verdict and not row.remarks] for verdict in _HALVES]
    return {item for items in halves if len(items) > FOLDED_ABOVE for item in items}


def _fold(rows: list[Row], verdict: str, view: View) -> Iterator[Text]:
    if rows:
        told = [(wording.clean(row.title), wording.clean(_cell(row, _HALVES[verdict]))) for row in rows]
        label = Text.assemble((f"  {_MARKS[verdict]} ", "bold"), (f"{_TELLS[verdict]}: ", "bold"))
        parts = [Text.assemble(title, " ", (value, _PATH)) for title, value in told]
        yield from wrapped(label, Text("; ").join(parts), view.screen.width, indent=6)


def _row(row: Row, view: View, title_width: int, value_width: int) -> Iterator[Text]:
    mark = _MARKS[row.verdict]
    remarks = _remarks(row, all_rows=view.all_rows)
    style = _WEIGHT[row.severity] if row.verdict == "different" else _STYLES.get(row.verdict, "dim")
    if row.verdict == "same" and remarks:
        mark, style = "!", _WEIGHT[remarks[0].severity]
    mark = _mark(mark, view)
    cells = [_cell(row, side) for side in ("baseline", "candidate")]
    values = "  ".join(_fitted(cell, value_width) for cell in cells)
    title = _fitted(wording.clean(row.title), title_width)
    bold = "bold " if row.verdict == "different" else ""
    yield Text.assemble(
        (f"  {mark} ", f"bold {style}".strip()), (title, f"{bold}{style}".strip()), "  ", values.rstrip()
    )
    yield from _below(row, view)
    for remark in remarks:
        who = "" if remark.side == "baseline and candidate" else f"{remark.side}: "
        label = Text("      ! ", _WEIGHT[remark.severity]) if row.verdict != "same" else Text("      ")
        yield from wrapped(label, Text(f"{who}{wording.sentence(remark.text)}"), view.screen.width)
        if remark.fix:
            yield from wrapped(
                Text("      fix: ", "bold"), Text(wording.sentence(remark.fix), _TYPE_THIS), view.screen.width
            )


def _mark(mark: str, view: View) -> str:
    return mark if view.has_unicode else _PLAIN.get(mark, mark)


def _below(row: Row, view: View) -> Iterator[Text]:
    """Yield lines with the reason and the places, of rows that differ, are equivalent, or cannot be told."""
    width = view.screen.width
    if row.verdict in ("different", "cannot-tell", "equivalent") and row.why:
        light = f"{row.severity}: " if row.verdict == "different" and row.severity != "error" else ""
        yield from wrapped(
            Text("      "), Text.assemble((light, _WEIGHT[row.severity]), wording.sentence(row.why)), width
        )
    if row.severity == "note" and not view.all_rows:
        return
    if row.verdict in ("different", "cannot-tell"):
        for name, setting in (("baseline", row.baseline_setting), ("candidate", row.candidate_setting)):
            if setting is not None:
                label = Text(f"      {name + ':':<11}", "dim")
                yield from wrapped(label, Text(place(setting), "dim"), width)
    if row.fix:
        fix = row.fix.replace(": ", "  ", 1) if _is_a_line(row) else row.fix
        yield from wrapped(Text(f"      {'fix:':<11}", "bold"), Text(wording.clean(fix, 2000), _TYPE_THIS), width)


def _is_a_line(row: Row) -> bool:
    """Return whether the fix is the candidate's line with another value, under which it then stands."""
    setting = row.candidate_setting
    return setting is not None and bool(setting.where) and row.fix.startswith(f"{setting.where}: ")


def _remarks(row: Row, *, all_rows: bool) -> tuple[Remark, ...]:
    return tuple(remark for remark in row.remarks if all_rows or remark.severity != "note")


def _cell(row: Row, side: str) -> str:
    setting = row.baseline_setting if side == "baseline" else row.candidate_setting
    text = value(setting, row.baseline if side == "baseline" else row.candidate)
    return f"{text} ({footing(setting)})" if footing(setting) else text


def _widths(width: int) -> tuple[int, int]:
    title = max(int(width * _TITLE_SHARE), 16)
    return title, max((width - title - 8) // 2, 8)


def _fitted(text: str, width: int) -> str:
    """Return the text, padded or cut in the middle to the width."""
    text = wording.shortened(text, width)
    return text + " " * (width - cell_len(text))


def _samples(found: Checklist, width: int) -> Iterator[Text]:
    if not found.samples:
        return
    yield Text()
    yield Text("samples of the batches", "bold")
    for sample in found.samples:
        yield from wrapped(Text("    "), Text(wording.sentence(sample)), width)


def _unknown(side: str, keys: list[str], view: View) -> Iterator[Text]:
    if not keys:
        return
    most = len(keys) if view.all_rows else UNKNOWN
    yield Text()
    yield Text(f"not understood, of the {side}: {wording.count(len(keys), 'key')}", "bold")
    for key in keys[:most]:
        yield Text(f"    {_fitted(key, view.screen.width - 4).rstrip()}", "dim")
    for line in cut_rows(min(most, len(keys)), len(keys), "key", "see them with --all or --json"):
        yield Text(f"    {line}", "dim")


def _closing(found: Checklist, shown: list[Row], view: View) -> Iterator[Text]:
    counts = {verdict: sum(row.verdict == verdict for row in found.rows) for verdict in _TELLS}
    told = [f"{_mark(_MARKS[verdict], view)} {n} {text}" for verdict, text in _TELLS.items() if (n := counts[verdict])]
    yield from wrapped(Text(), Text("  ".join(told), "dim"), view.screen.width)
    n_hidden = sum(row.verdict != "not-set" for row in found.rows) - sum(row.verdict != "not-set" for row in shown)
    n_unset = sum(row.verdict == "not-set" for row in found.rows)
    parts = [f"{wording.count(n_hidden, 'row')} not shown, see them with --all"] if n_hidden else []
    parts += [f"{wording.count(n_unset, 'item')} that neither side says"] if n_unset and not view.all_rows else []
    if parts:
        yield Text("; ".join(parts), "dim")


def value(setting: Setting | None, found: Value = None) -> str:
    """Return a setting's value as text: `1e-05`, `true`, `-` where a side says nothing, `?` where it cannot be told."""
    if setting is None:
        return "-" if found is None else _value(found)
    if setting.unresolved is not None:
        return "?"
    return _value(setting.value)


def footing(setting: Setting | None) -> str:
    """Return `default` or `computed` for a value that nobody wrote down; else empty."""
    if setting is None:
        return ""
    return "default" if setting.assumed is not None else "computed" if setting.derived is not None else ""


def place(setting: Setting | None) -> str:
    """Return where a value was said and how (`run.yaml:41 rms_norm_eps: 1e-6`), or whose default it is."""
    if setting is None:
        return "says nothing"
    if setting.assumed is not None:
        return f"default of {wording.clean(setting.assumed)}"
    if setting.derived is not None and not setting.spelled:
        return f"computed: {wording.clean(setting.derived)}"
    said = wording.clean(f"{setting.where}  {setting.spelled}".strip(), 90)
    return f"{said} ({wording.clean(setting.derived)})" if setting.derived else said


def unknown(setting: Setting) -> str:
    """Return a key that no table knows, as it stands in the file."""
    return wording.clean(f"{setting.where}  {setting.spelled}".strip(), 90)


def sides(found: Checklist) -> Iterator[tuple[str, str, tuple[str, ...], tuple[Setting, ...]]]:
    """Yield name, label, kinds and unknown keys of both sides."""
    yield "baseline", found.baseline, found.kinds_baseline, found.unknown_baseline
    yield "candidate", found.candidate, found.kinds_candidate, found.unknown_candidate


def in_groups(found: Checklist, rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows by group; groups in the order of the items, rows in the order given."""
    order = list(dict.fromkeys(row.group for row in found.rows))
    known = [group for group in GROUPS if group in order]
    for group in [*known, *(group for group in order if group not in known)]:
        inside = [row for row in rows if row.group == group]
        if inside:
            yield group, inside


def _value(found: Value) -> str:
    if isinstance(found, tuple):
        return ", ".join(map(_scalar, found))
    return _scalar(found)


def _scalar(found: Scalar) -> str:
    if found is None:
        return "none"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, float):
        return f"{found:.6g}"
    return wording.clean(str(found))
