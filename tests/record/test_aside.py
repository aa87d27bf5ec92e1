"""record/aside.py: work in a thread; what fails, hangs or is too slow there is raised to whoever gives it work."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence

import pytest

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record import aside
from hypocenter.record.aside import Aside
from hypocenter.record.catalogue import Sinks

FINDING = Finding(code="HC101", kind="nonfinite", severity="error", title="the product overflowed", step=3)


class Notes:
    """A patient sink that writes down what it is called with, and can be told to fail or to hang."""

    def __init__(self, *, fails_at: str = "", hangs: bool = False) -> None:
        self.calls: list[object] = []
        self.threads: set[str] = set()
        self.let_go = threading.Event()
        self._fails_at, self._hangs = fails_at, hangs

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        self._note("write", step.step if step else None)

    def finding(self, finding: Finding) -> None:
        self._note("finding", finding.code)

    def flush(self) -> None:
        self._note("flush")

    def close(self) -> None:
        self._note("close")

    def _note(self, name: str, *what: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.calls.append((name, *what))
        if name == self._fails_at:
            raise SystemExit("out of the thread") if name == "close" else ConnectionError("no network")
        if self._hangs:
            self.let_go.wait()


def waited_for(aside_: Aside, condition: str) -> None:
    until = time.monotonic() + 200.0
    while time.monotonic() < until and not getattr(aside_, condition):
        time.sleep(0.002)


def test_all_that_is_given_is_done_in_order_in_the_thread() -> None:
    notes = Notes()
    sink = Aside(notes, interval_s=100.0)

    for step in range(3):
        sink.write([], StepRecord(step=step))
    assert notes.calls == []  # its turn has not come
    sink.finding(FINDING)
    sink.settle()
    sink.write([], None)
    sink.close()

    done = [call for call in notes.calls if call != ("flush",)]
    assert done == [("write", 0), ("write", 1), ("write", 2), ("finding", "HC101"), ("write", None), ("close",)]
    assert notes.threads == {"hypocenter-sink"}


def test_what_fails_is_raised_at_the_next_call_and_the_sink_is_taken_out_once() -> None:
    warnings: list[str] = []
    sink = Aside(Notes(fails_at="write"), interval_s=0.001)
    sinks = Sinks({"remote": sink}, warnings.append)

    sinks.write([], StepRecord(step=0))
    waited_for(sink, "_error")
    for step in range(1, 4):
        sinks.write([], StepRecord(step=step))
    sinks.close()

    assert warnings == ["sink 'remote' failed and is switched off (ConnectionError: no network)"]


def test_a_library_that_ends_its_thread_ends_nothing_else() -> None:
    sink = Aside(Notes(fails_at="close"), interval_s=0.001)
    sink.write([], StepRecord(step=0))

    with pytest.raises(RuntimeError, match="out of the thread"):
        sink.close()


def test_one_that_hangs_is_given_up() -> None:
    notes = Notes(hangs=True)
    sink = Aside(notes, interval_s=0.001, patience_s=0.05, patience_at_end_s=0.05)
    sink.write([], StepRecord(step=0))
    waited_for(sink, "_turn_began")

    with pytest.raises(TimeoutError, match=r"no answer for 0\.05 s"):
        sink.settle()
    with pytest.raises(TimeoutError, match=r"no answer for 0\.05 s"):
        sink.write([], StepRecord(step=1))
    with pytest.raises(TimeoutError, match=r"no answer for 0\.05 s"):
        sink.close()
    notes.let_go.set()


def test_one_that_is_too_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "MOST_WAITING", 10)
    notes = Notes(hangs=True)
    sink = Aside(notes, interval_s=0.001)
    for step in range(11):
        sink.write([], StepRecord(step=step))

    with pytest.raises(TimeoutError, match="too slow: 11 rows are waiting"):
        sink.write([], StepRecord(step=11))
    notes.let_go.set()


def test_much_at_a_time_does_not_wait_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "MOST_WAITING", 80)
    sink = Aside(Notes(), interval_s=100.0)

    for step in range(11):
        sink.write([], StepRecord(step=step))
    waited_for(sink, "_n_done")

    assert sink._n_done > 0
    sink.close()


def test_a_forked_child_leaves_it_alone() -> None:
    sink = Aside(Notes(), interval_s=0.001)
    sink.write([], StepRecord(step=0))
    sink.settle()

    child = multiprocessing.get_context("fork").Process(target=lambda: (sink.write([], None), sink.close()))
    child.start()
    child.join(200)

    assert child.exitcode == 0
    sink.close()
