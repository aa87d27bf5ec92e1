"""[ ... ], [[ ... ]] and test: true, false, or not to be told from the script alone."""

from __future__ import annotations

import fnmatch

from hypocenter.checklist.shell.expansion import Field

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def holds(fields: tuple[Field, ...]) -> bool | None:
    """Whether the condition of a command holds; None when that cannot be told."""
    words = [field.text for field in fields]
    if words == ["true"] or words == [":"]:
        return True
    if words == ["false"]:
        return False
    if not words or words[0] not in ("[", "[[", "test"):
        return None
    inside = list(fields[1:])
    if words[0] != "test":
        if words[-1] not in ("]", "]]"):
            return None
        inside = inside[:-1]
    return _either(inside)


def _either(fields: list[Field]) -> bool | None:
    return _joined(fields, ("||", "-o"), _all, True)


def _all(fields: list[Field]) -> bool | None:
    return _joined(fields, ("&&", "-a"), _single, False)


def _joined(fields: list[Field], operators: tuple[str, ...], inner: object, decides: bool) -> bool | None:
    parts: list[list[Field]] = [[]]
    for field in fields:
        if field.text in operators:
            parts.append([])
        else:
            parts[-1].append(field)
    found = [inner(part) for part in parts]  # type: ignore[operator]
    if decides in found:
        return decides
    return None if None in found else not decides


def _single(fields: list[Field]) -> bool | None:
    if fields and fields[0].text == "!":
        inner = _single(fields[1:])
        return None if inner is None else not inner
    if any(not field.is_known for field in fields):
        return None
    words = [field.text for field in fields]
    match words:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, operator, right] if operator in _NUMBERS:
            return _compared(left, operator, right)
        case _:
            return None  # -f, -d and others ask the machine


def _compared(left: str, operator: str, right: str) -> bool | None:
    try:
        a, b = int(left), int(right)
    except ValueError:
        return None
    return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[operator]
