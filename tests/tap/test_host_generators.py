"""States of global generators: those of the moment, whoever has drawn and however."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hypocenter.tap import host_generators
from hypocenter.tap.host_generators import numpy_state, python_state

_OTHER = random.Random(1).getstate()
_OTHER_OF_NUMPY = np.random.RandomState(1).get_state()
_STEPS: list[Callable[[], Any]] = [
    random.random, lambda: random.gauss(0, 1), lambda: random.gauss(0, 1), random.random, lambda: random.shuffle([1]),
    lambda: random.setstate(_OTHER), lambda: random.seed(3), lambda: random.seed(3), lambda: random.getrandbits(1),
    np.random.rand, np.random.randn, np.random.randn, np.random.randn, lambda: np.random.seed(2),
    lambda: np.random.binomial(9, 0.5), lambda: np.random.set_state(_OTHER_OF_NUMPY), lambda: np.random.permutation(3),
    lambda: None, lambda: [random.random() for _ in range(624)], lambda: np.random.rand(312), np.random.random,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _put_back() -> Any:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def _are_now(of_python: Any, of_numpy: Any) -> bool:
    now: Any = np.random.get_state()
    return (
        of_python == random.getstate()
        and (of_numpy[0], *of_numpy[2:]) == (now[0], *now[2:])
        and np.array_equal(of_numpy[1], now[1])
    )


def test_each_draw_shows() -> None:
    chosen = random.Random(5)  # of our own
    for _ in range(400):
        chosen.choice(_STEPS)()

        assert _are_now(python_state(), numpy_state())


def test_what_is_kept_does_not_change_with_the_generator() -> None:
    kept, of_python = numpy_state(), python_state()
    words = kept[1].copy()

    np.random.rand(1000)
    random.random()
    python_state()

    assert np.array_equal(kept[1], words)
    assert not np.array_equal(numpy_state()[1], words)
    assert of_python != python_state()


def test_nothing_is_asked_anew_while_nobody_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(0)

    assert host_generators._shows_draws()
    assert host_generators._shows_numpy_draws()
    assert python_state() is python_state()
    assert numpy_state() is numpy_state()


def test_a_memory_that_shows_no_draw_is_not_relied_on() -> None:
    assert not host_generators._differ(lambda: b"always the same", [random.random])
    assert not host_generators._differ(lambda: b"", [])
