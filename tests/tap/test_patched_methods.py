"""Methods of tensors that a program has replaced run as often as it calls them."""

import pytest
import torch

from hypocenter.tap.tape import Tape
from hypocenter.tap.user_code import UserCode


@pytest.fixture
def mode():
    mode = UserCode(Tape(1 << 20), Tape(1 << 20), pytest.fail)
    mode.resume()
    yield mode
    mode.suspend()


def test_a_replaced_method_runs_once(mode, monkeypatch):
    original, calls = torch.Tensor.type, []

    def type_(self, *args, **kwargs):
        calls.append(args)
        return original(self, *args, **kwargs).replace("torch.", "torch.cuda.")

    monkeypatch.setattr(torch.Tensor, "type", type_)

    assert torch.ones(2).type() == "torch.cuda.FloatTensor"
    assert calls == [()]


def test_a_replaced_operator_runs_once(mode, monkeypatch):
    original = torch.Tensor.add
    monkeypatch.setattr(torch.Tensor, "add", lambda self, other: original(self, other) * 2)

    assert torch.ones(2).add(1).tolist() == [4.0, 4.0]


def test_a_replaced_property_runs_once(mode, monkeypatch):
    original, calls = torch.Tensor.is_leaf, []

    def is_leaf(self):
        calls.append(1)
        return original.__get__(self)

    monkeypatch.setattr(torch.Tensor, "is_leaf", property(is_leaf))
    x = torch.ones(2)
    calls.clear()

    assert x.is_leaf
    assert calls == [1]


def test_methods_of_torch_itself_are_called_as_they_are(mode):
    x = torch.arange(6.0, requires_grad=True)

    parts = x.split(2)

    assert [part.tolist() for part in parts] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert x.norm().item() == pytest.approx(55**0.5)
