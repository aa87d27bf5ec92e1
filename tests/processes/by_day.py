"""Of a family of slow cases CI runs the first of each kind, the night all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def first_of_each(cases: Iterable[Any], kind: Callable[[Any], Hashable]) -> list[Any]:
    """The cases for `parametrize`: the first of each kind as it is, the others marked `slow`. A tuple is one case."""
    seen: set[Hashable] = set()
    made: list[Any] = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        made.append(pytest.param(*values, marks=pytest.mark.slow) if kind(case) in seen else case)
        seen.add(kind(case))
    return made
