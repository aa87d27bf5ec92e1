"""Whether a device has done its work is asked, never waited for."""

import pytest
import torch

from hypocenter.tap import idle
from hypocenter.tap.idle import are_idle

XPU = torch.device("xpu", 0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def device(monkeypatch):
    """A device whose work is done at a given time of a fake clock."""
    clock = Clock()

    class Device:
        done_at, recorded = 3.0, []

        class Event:
            def record(self, stream):
                Device.recorded.append(stream)

            def query(self):
                return clock.now >= Device.done_at

        @staticmethod
        def current_stream(device):
            return f"stream of {device}"

    def sleep(seconds):
        clock.now += seconds

    Device.recorded, Device.clock = [], clock
    monkeypatch.setattr(idle.time, "sleep", sleep)
    monkeypatch.setattr(torch, "xpu", Device)
    return Device


def test_the_host_is_idle_at_once():
    assert are_idle([torch.device("cpu"), torch.device("meta")], 0.0)


def test_a_device_is_asked_until_it_is_done(device):
    assert are_idle([XPU], 10.0, device.clock)
    assert device.clock.now == pytest.approx(3.0, abs=0.02)
    assert device.recorded == ["stream of xpu:0"]


def test_a_device_that_is_never_done_is_given_up(device):
    device.done_at = 1e9

    assert not are_idle([XPU], 10.0, device.clock)
    assert device.clock.now == pytest.approx(10.0, abs=0.02)


def test_a_device_without_events_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(torch, "xpu", object())

    assert are_idle([XPU], 0.0)
