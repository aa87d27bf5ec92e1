"""Locks of torch: one that a killed process left is removed, one that is held stays."""

from __future__ import annotations

import sys
from pathlib import Path

from torch.utils.file_baton import FileBaton

sys.path.insert(0, str(Path(__file__).parent))

from extensions import remove_if_left


def test_a_lock_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()

    remove_if_left(lock)

    assert not lock.exists()


def test_a_lock_that_is_held_stays_and_one_that_is_gone_is_no_error(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    baton = FileBaton(str(lock))
    assert baton.try_acquire()

    remove_if_left(lock)
    held = lock.exists()
    baton.release()
    remove_if_left(lock)

    assert held
    assert not lock.exists()
