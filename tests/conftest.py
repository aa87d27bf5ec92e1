"""What every test process needs, before any test starts one of its own."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# What tests of many folders share.
sys.path.insert(0, str(Path(__file__).parent / "processes"))

import warm

# With it Python writes a printed line and its end one after the other, and lines of several ranks become mixed.
os.environ.pop("PYTHONUNBUFFERED", None)

# Inductor keeps compiled kernels for all processes of the machine, and under another capability they corrupt memory.
if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor-{capability}")

# How long an example takes is the machine's load, not the code's doing; and a test that passed passes again: its
# examples follow from its own text. `pytest --hypothesis-profile explore` looks further.
settings.register_profile("any machine", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What CI asks for."""
    parser.addoption("--by-day", action="store_true", help="nothing marked `night`, of what is marked `slow` the first")


def pytest_configure(config: pytest.Config) -> None:
    """One warm Python (tests/processes) for all workers, started by the first that asks."""
    if not hasattr(config, "workerinput"):
        warm.share()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Without collections of garbage, a sixth of the time: nearly all that is made now stays (each worker does it)."""
    is_one_of_many = hasattr(session.config, "workerinput")
    gc.disable()
    try:
        with _after_the_first() if is_one_of_many else contextlib.nullcontext():
            return (yield)
    finally:
        gc.enable()


@contextlib.contextmanager
def _after_the_first() -> Generator[None]:
    """One worker collects, and compiles what is imported the first time; then all others, who find it compiled.

    What several workers compile at once each of them compiles for itself.
    """
    done = Path(os.environ[warm.SHARED], "collected")
    with done.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            yield
            done.touch()
            return
    yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the night (.github/workflows/nightly.yml) what CI does not run at each commit; long files come first.

    The choice is the same for all commits: what fails in CI passed at the commit before.
    """
    if config.getoption("--by-day"):
        _narrow(config, items)
    n_marked = Counter((item.path, mark.name) for item in items for mark in item.iter_markers())
    # So that all workers end together.
    items.sort(key=lambda item: (-n_marked[item.path, "long"], -n_marked[item.path, "slow"]))


def _narrow(config: pytest.Config, items: list[pytest.Item]) -> None:
    of_day = [item for item in items if item.get_closest_marker("night") is None]
    first: dict[str, pytest.Item] = {}
    for item in of_day:
        for whole in (_test_of(item), *(node.nodeid for node in item.listchain()[:-1])):
            first.setdefault(whole, item)
    kept = {item for item in of_day if (slow := _slow_whole(item)) is None or first[slow] is item}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _slow_whole(item: pytest.Item) -> str | None:
    """Of what only the first is run: the file, or the test, that is marked `slow`; none if neither is."""
    marked = [node for node, _ in item.iter_markers_with_node("slow")]
    if not marked:
        return None
    return _test_of(item) if marked[-1] is item else marked[-1].nodeid


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.fixture(autouse=True)
def what_was_there_before_is_left_alone() -> None:
    """Garbage collections, and each session's look for optimizers, pass over what imports and other tests left.

    At each test: what is new since the last one is little, and a file of fifty tests leaves 100,000 objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_session_is_left() -> Generator[None]:
    """Fail the test that leaves a session behind: it would listen to all tests after it in this process."""
    before = _sessions()
    yield
    left = _sessions() - before
    assert left <= 0, f"this test left {left} session(s) open"


def _sessions() -> int:
    start = sys.modules.get("hypocenter.session.start")
    taps = sys.modules.get("hypocenter.tap.collectives")
    frames = sys.modules.get("hypocenter.tap.own_frame")
    n_hearers = sum(len(told.hearers) for told in frames._listening) if frames else 0
    return (len(start._current) if start else 0) + (taps._shared.n if taps else 0) + n_hearers
