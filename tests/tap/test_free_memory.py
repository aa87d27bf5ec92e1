"""What a device could still give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hypocenter.tap import free_host_memory, free_memory


def test_the_hosts_memory_is_some_and_shared_by_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(free_host_memory, "_free", lambda: 1000)

    assert free_memory.free_bytes(torch.device("cpu")) == 1000

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory.free_bytes(torch.device("cpu")) == 250


def test_it_is_no_more_than_there_is() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert 0 < free_host_memory._free() <= total


def test_a_system_that_tells_nothing_of_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, **_: object) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", missing)

    assert free_host_memory._free() > 0


def test_a_device_that_does_not_tell() -> None:
    assert free_memory.free_bytes(torch.device("meta")) == free_memory.UNKNOWN
    assert free_memory.peak_bytes(torch.device("meta")) == 0
