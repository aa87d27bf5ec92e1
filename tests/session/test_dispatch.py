"""`watch` starts the session of the framework that it is given a model of."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from hypocenter.session import dispatch


class Cell:
    """Stands for mindspore.nn.Cell."""


Cell.__module__ = "mindspore.nn.cell"


class Net(Cell):
    """A user's."""


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ((None, None, None), False),
        ((Net(), None, None), True),
        ((None, Net(), None), True),
        ((torch.nn.Linear(1, 1), None, None), False),
        ((None, torch.optim.SGD([torch.zeros(1)], lr=0.1), None), False),
    ],
)
def test_what_is_given_tells(things: tuple[Any, ...], expected: bool) -> None:
    assert dispatch._is_mindspore(*things) is expected


def test_without_a_hint_the_only_framework_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", sys)
    both = dispatch._is_mindspore(None)
    monkeypatch.delitem(sys.modules, "torch")

    assert (both, dispatch._is_mindspore(None)) == (False, True)
