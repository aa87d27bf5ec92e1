"""What a model is called in the code that calls it."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
from torch import nn

from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.variables import variable_name


def name_here(module, taken=()):
    return variable_name(module, sys._getframe(1), frozenset(taken))


def called_as_model(model):
    return variable_name(model, sys._getframe(0))


class Thing:
    pass


class Trainer:
    def __init__(self):
        self.generator = nn.Linear(2, 2)
        self.models = {"disc": nn.Linear(2, 2)}

    def name(self, *, of_item):
        return name_here(self.models["disc"] if of_item else self.generator)


def test_a_local_variable():
    netD = nn.Linear(2, 2)

    assert name_here(netD) == "netD"


def test_the_callers_name_comes_before_the_parameter_of_a_function():
    netG = nn.Linear(2, 2)

    assert called_as_model(netG) == "netG"


def test_a_general_name_is_better_than_none():
    assert called_as_model(nn.Linear(2, 2)) == "model"


def test_an_attribute_of_self_and_an_item():
    assert Trainer().name(of_item=False) == "generator"
    assert Trainer().name(of_item=True) == "models.disc"


def test_an_item_of_a_list():
    nets = [nn.Linear(2, 2), nn.Linear(2, 2)]

    assert name_here(nets[0]) == "nets.0"
    assert name_here(nets[1]) == "nets.1"


def test_an_item_of_a_container_that_is_never_called_itself():
    parts = nn.ModuleDict({"body": nn.Linear(2, 2)})
    layers = nn.ModuleList([nn.Linear(2, 2)])

    assert name_here(parts["body"]) == "parts.body"
    assert name_here(layers[0]) == "layers.0"


def test_a_wrapped_model_is_called_as_its_wrapper():
    critic = nn.DataParallel(nn.Linear(2, 2))

    assert name_here(critic.module) == "critic"


def test_a_name_that_another_model_has_is_not_taken_twice():
    student = nn.Linear(2, 2)
    teacher = student

    assert name_here(teacher, taken=("student",)) == "teacher"


def test_a_model_that_no_variable_holds_has_no_name():
    assert variable_name(nn.Linear(2, 2), sys._getframe()) == ""


def looked_at():
    """A reference to what a variable held when the frame was looked at; the variable is gone since."""
    batch = Thing()
    ref = weakref.ref(batch)
    found = "batch" in variables_of(sys._getframe())
    batch = None
    gc.collect()
    return found, ref


def test_looking_keeps_nothing_alive():
    found, ref = looked_at()

    assert found
    assert ref() is None


def test_a_function_that_reads_its_own_variables_still_can():
    kept = locals()
    netE = nn.Linear(2, 2)

    assert name_here(netE) == "netE"
    assert "kept" in locals()
    assert kept is not None


def test_a_function_that_a_profiler_looks_at_keeps_its_variables():
    def looked_at():
        value = [1]
        len(value)
        return value

    def look(frame, event, _):
        if frame.f_code is looked_at.__code__:
            variables_of(frame)

    sys.setprofile(look)
    try:
        found = looked_at()
    finally:
        sys.setprofile(None)

    assert found == [1]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="frames keep no snapshot")
@pytest.mark.parametrize("is_own", [True, False])
def test_the_snapshot_of_another_threads_frame_is_left_to_it(is_own):
    def shown():
        value = [1]
        frame = sys._getframe()
        snapshot = frame.f_locals
        found = variables_of(frame, is_own=is_own)
        return value, found["value"], bool(snapshot)

    assert shown() == ([1], [1], not is_own)
