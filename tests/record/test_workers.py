"""record/workers.py: answers come in the order of the parts, whoever works them out, and whoever dies."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from hypocenter.errors import ConfigError
from hypocenter.record.workers import Processes, workers_of


def doubled(part: int) -> int:
    return 2 * part


def of_pid(part: int) -> int:
    return os.getpid()


def dies(folder: Path, times: int, home: int, part: int) -> int:
    """Kills its process at part 3, some times."""
    if part == 3 and os.getpid() != home and len(list(folder.iterdir())) < times:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * part


def fails(part: int) -> int:
    raise ValueError(part)


def test_answers_come_in_the_order_of_the_parts():
    workers = Processes(2)

    assert list(workers.run(doubled, range(9))) == [2 * n for n in range(9)]
    assert os.getpid() not in set(workers.run(of_pid, range(4)))
    assert list(workers.run(doubled, [])) == []
    assert workers.notes == ()


def touches(folder: Path, number: int) -> None:
    """Not done before two processes do it."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    raise ValueError("not said here")


def test_all_workers_are_there_before_they_are_asked(tmp_path: Path):
    workers = Processes(2)
    workers.start(partial(touches, tmp_path))

    asked = set(map(str, workers.run(of_pid, range(6))))
    ready = {path.name for path in tmp_path.iterdir()}
    assert asked <= ready
    assert str(os.getpid()) not in ready
    assert workers.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_what_a_killed_worker_was_asked_is_asked_again(tmp_path: Path, times: int):
    workers = Processes(2)

    found = list(workers.run(partial(dies, tmp_path, times, os.getpid()), range(9)))

    assert found == [2 * n for n in range(9)]
    words = "1 time" if times == 1 else f"{times} times"
    assert workers.notes == (f"a worker died {words}: its ranks were looked at again",)
    assert list(workers.run(doubled, range(3))) == [0, 2, 4]


def test_what_kills_every_worker_is_looked_at_here(tmp_path: Path):
    workers = Processes(2)

    assert list(workers.run(partial(dies, tmp_path, 99, os.getpid()), range(6))) == [2 * n for n in range(6)]


def test_what_raises_in_a_worker_raises_here():
    with pytest.raises(ValueError, match="7"):
        list(Processes(1).run(fails, [7]))


def test_what_nobody_knows_is_one_error():
    for on in ("abacus", "processes:0", "processes:many", "dask:here"):
        with pytest.raises(ConfigError, match="nothing to look at ranks on"):
            workers_of(on)
    assert workers_of("") is None
