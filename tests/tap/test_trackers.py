"""Random states that frameworks keep in Python objects go on from where they were."""

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hypocenter.tap import state as ambient
from hypocenter.tap.state import capture_rng, restore_rng


class Tracker:
    """As Megatron-Core's: a state is lent to torch's generator, and another tensor put in its place afterwards."""

    def __init__(self, *names):
        self.states_ = {name: torch.Generator().manual_seed(seed).get_state() for seed, name in enumerate(names)}

    def get_states(self):
        return dict(self.states_)

    def set_states(self, states):
        self.states_ = states

    @contextmanager
    def fork(self, name):
        before = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        yield
        self.states_[name] = torch.get_rng_state()
        torch.set_rng_state(before)


class OfGenerators(Tracker):
    """As the one that graphs can capture: its states change in place."""

    def __init__(self, *names):
        self.states_ = {name: torch.Generator().manual_seed(seed) for seed, name in enumerate(names)}


class Recorder:
    """Has methods of the same names, and is something else."""

    def __init__(self):
        self.n_asked = 0

    def get_states(self):
        self.n_asked += 1
        return {"loss": [1.0, 2.0]}

    def set_states(self, states):
        raise AssertionError("nobody must call this")


@pytest.fixture
def package(monkeypatch):
    """A package that keeps its tracker as a global."""
    module = ModuleType("a_framework.random")
    module.Tracker, module.OfGenerators, module.Recorder = Tracker, OfGenerators, Recorder
    monkeypatch.setitem(sys.modules, "a_framework.random", module)
    monkeypatch.setattr(ambient.capture_trackers.__globals__["_known"], "_n_loaded", -1)
    monkeypatch.setattr(ambient.capture_trackers.__globals__["_known"], "_seen", set())
    return module


def test_a_tracker_that_is_made_after_the_import_draws_the_same_again(package):
    assert not any(isinstance(each.tracker, Tracker) for each in capture_rng().trackers)  # others may be imported
    tracker = package._TRACKER = Tracker("data", "model")

    def drawn():
        with tracker.fork("model"):
            return torch.rand(3)

    drawn()
    state, first, second = capture_rng(), drawn(), drawn()
    restore_rng(state)

    assert torch.equal(drawn(), first)
    restore_rng(state)
    assert torch.equal(drawn(), first)
    assert torch.equal(drawn(), second)


def test_a_tracker_is_seen_that_takes_the_place_of_nothing(package):
    package._TRACKER = None
    capture_rng()

    tracker = package._TRACKER = Tracker("data")

    assert any(each.tracker is tracker for each in capture_rng().trackers)


def test_generators_that_a_tracker_holds_stay_the_objects_they_are(package):
    tracker = package._TRACKER = OfGenerators("model")
    generator = tracker.states_["model"]
    torch.rand(3, generator=generator)

    state, first = capture_rng(), torch.rand(3, generator=generator)
    restore_rng(state)

    assert tracker.states_["model"] is generator
    assert torch.equal(torch.rand(3, generator=generator), first)


def test_an_object_with_methods_of_these_names_is_left_alone(package):
    recorder = package._RECORDER = Recorder()

    restore_rng(capture_rng())
    capture_rng()

    assert recorder.n_asked == 1


def test_the_generators_of_all_devices_go_on_from_where_they_were(monkeypatch):
    generators = [torch.Generator().manual_seed(index) for index in range(3)]
    current = 1

    def at(index):
        return generators[current if index is None else index]

    module = SimpleNamespace(
        is_initialized=lambda: True,
        get_rng_state=lambda index=None: at(index).get_state(),
        set_rng_state=lambda state, index=None: at(index).set_state(state),
    )
    monkeypatch.setattr(torch, "some_device", module, raising=False)
    monkeypatch.setattr(ambient, "accelerator_type", lambda: "some_device")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)

    state = capture_rng()
    first = [torch.rand(2, generator=each) for each in generators]
    restore_rng(state)

    assert all(torch.equal(torch.rand(2, generator=g), was) for g, was in zip(generators, first, strict=True))
