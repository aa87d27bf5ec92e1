"""tap.own_frame: what is told of a call is what Python binds, and the call is made as it was."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap.own_frame import hear
from hypocenter.tap.read_again import Rebound, like_decorated, read_first

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


@pytest.mark.parametrize(
    "clip",
    [
        lambda held: torch.nn.utils.clip_grad_norm_(held, 0.5),
        lambda held: torch.nn.utils.clip_grad_norm_(parameters=held, max_norm=0.5),
        lambda held: torch.nn.utils.clip_grad_value_(held, clip_value=0.5),
    ],
)
def test_each_of_several_hearers_gets_what_an_iterator_holds_and_so_does_the_function(clip: Any) -> None:
    heard: list[list[torch.Tensor]] = []
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rebound | None:
        parameters, rebound = read_first(args, kwargs)
        heard.append(parameters)
        return rebound

    undos = [
        hear(torch.nn.utils, name, begin, like=like_decorated, rebinds=("args", "kwargs"))
        for name in ("clip_grad_norm_", "clip_grad_value_")
        for _ in range(3)
    ]
    try:
        clip(model.parameters())
    finally:
        for undo in undos:
            undo()

    assert [list(map(id, each)) for each in heard] == [[id(model.weight), id(model.bias)]] * 3
    assert float(model.weight.grad.abs().max()) <= 0.5
