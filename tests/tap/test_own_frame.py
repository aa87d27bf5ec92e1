"""tap.own_frame: what is told of a call is what Python binds, and the call is made as it was."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap.own_frame import hear

NAMES = st.sampled_from(["first", "second", "third", "other"])


def _like(first: Any, second: Any, third: Any = 3) -> None: ...


@given(st.lists(st.integers(), max_size=4), st.dictionaries(NAMES, st.integers(), max_size=3))
def test_it_is_told_what_python_binds(args: list[int], kwargs: dict[str, int]) -> None:
    told, called = [], []
    owner = SimpleNamespace(run=lambda *args, **kwargs: called.append((args, kwargs)))
    undo = hear(owner, "run", lambda *given: told.append(given), like=_like)

    owner.run(*args, **kwargs)
    undo()

    try:
        bound = inspect.signature(_like).bind(*args, **kwargs)
    except TypeError:
        assert (told, called) == ([], [(tuple(args), kwargs)])  # the function itself is to complain
    else:
        bound.apply_defaults()
        assert (told, called) == ([tuple(bound.arguments.values())], [(bound.args, bound.kwargs)])
