"""The axes of a job: one list, which the vocabulary and every module go by."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import hypocenter
from hypocenter.axes import AXES, HOLD_COPIES, OUTER_FIRST, WORDS
from hypocenter.nouns import Coords


def test_coordinates_and_lists_know_the_same_axes() -> None:
    assert tuple(field.name for field in fields(Coords)) == AXES == tuple(WORDS)
    assert sorted(OUTER_FIRST) == sorted(AXES)
    assert set(HOLD_COPIES) < set(AXES)


def test_no_other_place_lists_them() -> None:
    root = Path(hypocenter.__file__).parent

    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
        and {each.value for each in node.elts if isinstance(each, ast.Constant)} >= set(AXES)
    ]

    assert [place for place in found if not place.startswith("axes.py")] == []
