"""From rows to an answer: the status, one sentence, and the order in which rows are told."""

from __future__ import annotations

from collections.abc import Sequence

from hypocenter.checklist.checklist import Row, Status
from hypocenter.in_words import counted, some

LEAST_COMPARED = 0.5  # of the items of importance error that a side says, this many must be said by both for "same"
_COMPARED = frozenset({"same", "equivalent", "different"})
_VERDICTS = ("different", "cannot-tell", "equivalent", "only-baseline", "only-candidate", "same", "not-set")
_IMPORTANCE = ("error", "warning", "note")
_NAMED = 3  # titles in the sentence before the rest is counted


def conclude(rows: Sequence[Row]) -> tuple[Status, str]:
    """Return the status and its sentence.

    Different: a row of importance error or warning differs. Same: none does, and at least half of the items of
    importance error that either side says were compared. Else it cannot be told. Rows that only one side says are no
    difference, and remarks (dropout is on, on both sides) are about one side and not about the comparison: both are
    counted in the sentence and shown.
    """
    said = [row for row in rows if row.verdict != "not-set"]
    compared = [row for row in said if row.verdict in _COMPARED]
    different = [row for row in compared if row.verdict == "different"]
    matter = ordered([row for row in different if row.severity != "note"])
    minor = len(different) - len(matter)
    light = f"; {minor} of little weight {'differs' if minor == 1 else 'differ'}" if minor else ""
    if matter:
        rest = f"{light}{_more(said)}"
        return "different", f"different in {len(matter)} of {counted(len(compared), 'item')}: {_titles(matter)}{rest}"
    heavy = [row for row in said if row.severity == "error"]
    n_heavy = sum(row.verdict in _COMPARED for row in heavy)
    if not n_heavy or n_heavy < LEAST_COMPARED * len(heavy):
        if not said:
            return "cannot-tell", "cannot tell: neither side says anything that a checklist knows"
        where = f"{n_heavy} of {counted(len(heavy), 'item')} that matter most"
        return "cannot-tell", f"cannot tell: only {where} can be compared{_more(said)}"
    n, all_of = len(compared), "all" if not minor else f"{len(compared) - minor} of"
    return "same", f"same in {all_of} {counted(n, 'item')} that can be compared{light}{_more(said)}"


def ordered(rows: Sequence[Row], groups: Sequence[str] = ()) -> tuple[Row, ...]:
    """Sort rows: differences first, the important before the minor, then in the order of the groups."""
    place = {group: i for i, group in enumerate(groups)}

    def rank(row: Row) -> tuple[int, int, int]:
        return _VERDICTS.index(row.verdict), _IMPORTANCE.index(row.severity), place.get(row.group, len(place))

    return tuple(sorted(rows, key=rank))


def _more(said: Sequence[Row]) -> str:
    half = sum(row.verdict.startswith("only-") for row in said)
    lost = sum(row.verdict == "cannot-tell" for row in said)
    parts = [f"{half} said on one side only"] if half else []
    parts += [f"{lost} that cannot be told"] if lost else []
    remarks = sum(remark.severity != "note" for row in said for remark in row.remarks)
    parts += [f"{counted(remarks, 'remark')} worth a look"] if remarks else []
    return f"; {', '.join(parts)}" if parts else ""


def _titles(rows: Sequence[Row]) -> str:
    return some((row.title for row in rows), _NAMED)
