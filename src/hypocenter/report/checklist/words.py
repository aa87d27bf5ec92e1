"""How values, places and verdicts of a checklist are written."""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.checklist.checklist import Checklist, Row
from hypocenter.checklist.configuration import Scalar, Setting, Value
from hypocenter.report import wording


def value(setting: Setting | None, found: Value = None) -> str:
    """`1e-05`, `true`, `-` where a side says nothing, `?` where it cannot be told."""
    if setting is None:
        return "-" if found is None else _value(found)
    if setting.unresolved is not None:
        return "?"
    return _value(setting.value)


def footing(setting: Setting | None) -> str:
    """What a value rests on if nobody wrote it down: `default`, `computed`; else empty."""
    if setting is None:
        return ""
    return "default" if setting.assumed is not None else "computed" if setting.derived is not None else ""


def place(setting: Setting | None) -> str:
    """Where a value was said and how: `run.yaml:41 rms_norm_eps: 1e-6`; or whose default it is."""
    if setting is None:
        return "says nothing"
    if setting.assumed is not None:
        return f"default of {wording.clean(setting.assumed)}"
    if setting.derived is not None and not setting.spelled:
        return f"computed: {wording.clean(setting.derived)}"
    said = wording.clean(f"{setting.where}  {setting.spelled}".strip(), 90)
    return f"{said} ({wording.clean(setting.derived)})" if setting.derived else said


def unknown(setting: Setting) -> str:
    """A key that no table knows, as it stands in the file."""
    return wording.clean(f"{setting.where}  {setting.spelled}".strip(), 90)


def sides(found: Checklist) -> Iterator[tuple[str, str, tuple[str, ...], tuple[Setting, ...]]]:
    """Name, label, kinds and unknown keys of both sides."""
    yield "baseline", found.baseline, found.kinds_baseline, found.unknown_baseline
    yield "candidate", found.candidate, found.kinds_candidate, found.unknown_candidate


def in_groups(found: Checklist, rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows by group, groups in the order of the items, each group's rows in the order given."""
    order = list(dict.fromkeys(row.group for row in found.rows))
    known = [group for group in GROUPS if group in order]
    for group in [*known, *(group for group in order if group not in known)]:
        inside = [row for row in rows if row.group == group]
        if inside:
            yield group, inside


GROUPS = ("structure", "moe", "optimizer", "weights", "precision", "parallel", "data", "other")


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
