"""Layers are called by their place in the whole model, when they know it and other ranks hold the rest."""

import pytest
from torch import nn

from hypocenter.tap import numbering
from hypocenter.tap.names import NameMap
from hypocenter.tap.topology.survey import layer_numbers


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.layer_number = number
        self.mlp = nn.Linear(2, 2)


class Decoder(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.layers = nn.ModuleList(Layer(n) for n in numbers)


class Model(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.decoder = Decoder(numbers)


@pytest.fixture
def others(monkeypatch):
    """There are other ranks."""
    monkeypatch.setattr(numbering, "is_one_of_many", lambda: True)


def named(*models):
    names = NameMap()
    for model in models:
        names.add_root(model)
    return names, {name for name, _ in names.parameters() if name.endswith("weight")}


def test_a_second_stage_goes_on_where_the_first_ended(others):
    model = Model([4, 5])
    names, weights = named(model)

    assert weights == {"decoder.layers.3.mlp.weight", "decoder.layers.4.mlp.weight"}
    assert layer_numbers(names.modules()) == {"decoder.layers.3": 4, "decoder.layers.4": 5}


def test_chunks_of_one_model_have_no_prefix(others):
    _, weights = named(Model([1, 2]), Model([5, 6]))

    assert weights == {f"decoder.layers.{i}.mlp.weight" for i in (0, 1, 4, 5)}


def test_two_models_of_one_class_are_no_chunks(others):
    _, weights = named(Model([1]), Model([1]))

    assert weights == {"Model.decoder.layers.0.mlp.weight", "Model#2.decoder.layers.0.mlp.weight"}


@pytest.mark.parametrize("numbers", [[1, 2], [0, 1], [4, 6], [None, 5], [True, 2], [2, 1]])
def test_numbers_that_say_nothing_else_leave_the_places(others, numbers):
    _, weights = named(Model(numbers))

    assert weights == {"decoder.layers.0.mlp.weight", "decoder.layers.1.mlp.weight"}


def test_one_process_alone_has_the_whole_model():
    _, weights = named(Model([4, 5]))

    assert weights == {"decoder.layers.0.mlp.weight", "decoder.layers.1.mlp.weight"}
