"""tap.own_frame: what is told of a call is what Python binds, and the call is made as it was."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
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


def test_a_function_of_torch_that_is_heard_again_is_not_compiled_again() -> None:
    relu, told, codes = torch.nn.functional.relu, [], []
    own = relu.__code__

    for session in range(2):
        undo = hear(torch.nn.functional, "relu", lambda *given, by=session: told.append((by, *given)))
        codes.append(relu.__code__)
        relu(torch.ones(1))
        undo()
        assert relu.__code__ is own

    assert codes[0] is codes[1] is not own
    assert [(by, inplace) for by, _, inplace in told] == [(0, False), (1, False)]
