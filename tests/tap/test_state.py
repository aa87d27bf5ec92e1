"""Ambient state and random generators: captured, and entered again."""

import random
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap import state as random_state
from hypocenter.tap.state import capture_ambient, capture_rng, entered, restore_rng


def autocast():
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_grad_enabled()


def test_autocast_and_grad_mode_are_entered_again():
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        inside, ambient = autocast(), capture_ambient()
    outside = autocast()

    with entered(ambient):
        assert autocast() == inside
    assert autocast() == outside


def test_a_plain_state_switches_autocast_off_where_it_is_on():
    plain = capture_ambient()

    with torch.autocast("cpu", torch.bfloat16), entered(plain):
        assert autocast()[0] is False
        assert torch.is_grad_enabled()


def test_random_generators_go_on_from_where_they_were():
    state = capture_rng()
    first = torch.rand(3), random.random(), np.random.rand()
    restore_rng(state)
    second = torch.rand(3), random.random(), np.random.rand()

    assert torch.equal(first[0], second[0])
    assert first[1:] == second[1:]


_USES = {
    "nothing": lambda: None,
    "a normal number": np.random.randn,  # two are made at once: the second one waits
    "a number": np.random.rand,
    "a seed": lambda: np.random.seed(5),
    "another generator": lambda: np.random.set_state(np.random.RandomState(7).get_state()),
}


@given(st.lists(st.sampled_from(sorted(_USES)), max_size=8))
def test_numpy_goes_on_from_wherever_it_was(uses):
    states, expected = [], []
    for use in [*uses, "nothing"]:
        _USES[use]()
        states.append(capture_rng())
        before = np.random.get_state()
        expected.append((np.random.randn(), np.random.rand()))
        np.random.set_state(before)

    for state, numbers in zip(states, expected, strict=True):
        restore_rng(state)
        assert (np.random.randn(), np.random.rand()) == numbers


class _Generator:
    """CUDA's: two objects may share a state; that it was set is known to the object that it was set through."""

    device = torch.device("cuda", 0)

    def __init__(self, state=None):
        self.state, self.was_set = state if state is not None else {"is": torch.zeros(16, dtype=torch.uint8)}, False

    def graphsafe_get_state(self):
        return _Generator(self.state)

    def get_state(self):
        return self.state["is"].clone()

    def set_state(self, state):
        self.state["is"], self.was_set = state.clone(), True

    def manual_seed(self, seed):
        self.set_state(torch.full((16,), seed, dtype=torch.uint8))


def test_a_devices_generator_is_put_back_without_being_told(monkeypatch):
    """cuDNN's dropout draws a new seed once CUDA's own generator object has been set."""
    own = _Generator()
    device = SimpleNamespace(
        default_generators=(own,), current_device=lambda: 0, get_rng_state=lambda *_: own.get_state(),
        is_initialized=lambda: True, is_current_stream_capturing=lambda: False,
    )  # fmt: skip
    monkeypatch.setattr(torch, "cuda", device)
    monkeypatch.setattr(random_state, "accelerator_type", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    kept = capture_rng()

    random_state.seeded(7)
    assert own.get_state().tolist() == [7] * 16
    restore_rng(kept)

    assert own.get_state().tolist() == [0] * 16
    assert not own.was_set
