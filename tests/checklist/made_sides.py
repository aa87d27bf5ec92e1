"""Configurations made by hand: what a reader would give, without a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypocenter.checklist.checklist import Checklist, Configuration, Row, Setting, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one side says of one item, and what else it says that bears on it. `setting`: more fields of a Setting."""

    value: Value = None
    kind: str = "made"
    other: dict[str, Value] = field(default_factory=dict[str, Value])
    setting: dict[str, Any] = field(default_factory=dict[str, Any])
    is_silent: bool = False


def setting(item: str, value: Value, **more: Any) -> Setting:
    """A setting as it would stand in a file."""
    told = {"spelled": f"{item.rpartition('.')[2]}: {value}", "where": "made.yaml:7"}
    return Setting(item=item, value=value, **{**told, **more})


def side(values: dict[str, Value] | None = None, *, label: str = "a", kind: str = "made", **more: Any) -> Configuration:
    """A configuration of these values."""
    settings = {item: setting(item, value) for item, value in (values or {}).items()}
    return Configuration(label=label, kinds=(kind,), settings=settings, **more)


def side_of(item: str, said: Said, label: str = "a") -> Configuration:
    """A configuration that says one item so, and the others that go with it."""
    settings = {key: setting(key, value) for key, value in said.other.items()}
    if not said.is_silent:
        settings[item] = setting(item, said.value, **said.setting)
    return Configuration(label=label, kinds=(said.kind,), settings=settings)


def row(found: Checklist, item: str) -> Row:
    """The one row of an item."""
    (only,) = [row for row in found.rows if row.item == item]
    return only
