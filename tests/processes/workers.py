"""`pytest --workers N`: collect the tests once, and run them in N forks of that process.

Each worker takes a file's tests at a time, in order, so that what they share is made once; long files come first, so
that all workers end together. What a worker reports is told again here, as if it had been run here. One that dies
fails the test that it was at, and another goes on behind it.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

Unit = list[pytest.Item]
WORD = 4  # bytes of a unit's number in the queue; all of them fit into a pipe


@dataclass(eq=False)
class Worker:
    """A fork, and what it has taken and not yet done."""

    pid: int
    told: Connection
    left: Unit


class Workers:
    """Plugin of the process that collects."""

    def __init__(self, n: int) -> None:
        self.n = n

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        gc.disable()  # nothing of what is made is thrown away: each look for it takes longer than the one before
        try:
            return (yield)
        finally:
            gc.enable()
            gc.freeze()  # a collection in a worker would copy each page

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
            reporter.showfspath = False  # files of several workers take turns
        _Loop(session, units(session.items)).run(self.n)
        return True


def units(items: Unit) -> list[Unit]:
    """The tests of each file together, first the files that have long tests, then those that have many slow ones."""
    files = [list(group) for _, group in itertools.groupby(items, key=lambda item: item.path)]
    return sorted(files, key=lambda file: (-_n_marked(file, "long"), -_n_marked(file, "slow")))


def _n_marked(file: Unit, name: str) -> int:
    return sum(item.get_closest_marker(name) is not None for item in file)


class _Loop:
    def __init__(self, session: pytest.Session, todo: list[Unit]) -> None:
        self.session, self.config, self.units = session, session.config, todo
        self.queue, to_queue = os.pipe()
        os.write(to_queue, b"".join(number.to_bytes(WORD, "little") for number in range(len(todo))))
        os.close(to_queue)
        self.workers: list[Worker] = []
        self.n_begun = 0

    def run(self, n: int) -> None:
        for _ in range(min(n, len(self.units))):
            self._begin([])
        try:
            while self.workers:
                ready = wait([worker.told for worker in self.workers])
                for worker in [worker for worker in self.workers if worker.told in ready]:
                    self._hear(worker)
        finally:
            for worker in self.workers:
                os.kill(worker.pid, signal.SIGKILL)
            os.close(self.queue)

    def _begin(self, first: Unit) -> None:
        told, tells = Pipe(duplex=False)
        number, self.n_begun = self.n_begun, self.n_begun + 1
        pid = os.fork()
        if pid == 0:
            told.close()
            _work(_Telling(self.config, tells), self._taken(first, tells), number)
        tells.close()
        self.workers.append(Worker(pid, told, list(first)))

    def _taken(self, first: Unit, tells: Connection) -> Iterator[pytest.Item]:
        """In a worker: the tests that it takes."""
        yield from first
        while word := os.read(self.queue, WORD):
            number = int.from_bytes(word, "little")
            tells.send(("taken", number))
            yield from self.units[number]

    def _hear(self, worker: Worker) -> None:
        try:
            what, value = worker.told.recv()
        except EOFError:
            self._ended(worker)
            return
        hook = self.config.hook
        if what == "taken":
            worker.left += self.units[value]
        elif what == "logstart":
            hook.pytest_runtest_logstart(nodeid=value[0], location=value[1])
        elif what == "logfinish":
            hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])
            del worker.left[0]
        elif what == "report":
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=self.config, data=value))
        elif what == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=value)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)

    def _ended(self, worker: Worker) -> None:
        self.workers.remove(worker)
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not worker.left:
            assert code == 0, f"a worker ended with {code} after its last test"
            return
        lost, *rest = worker.left
        said = f"the worker that ran this test ended with {code}"
        report = pytest.TestReport(lost.nodeid, lost.location, {}, "failed", said, "call")
        self.config.hook.pytest_runtest_logreport(report=report)
        self._begin(rest)


class _Telling:
    """Plugin of a worker: what is reported is told to the process that collected."""

    def __init__(self, config: pytest.Config, to: Connection) -> None:
        self.config, self.to = config, to

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.to.send(("logstart", (nodeid, location)))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.to.send(("logfinish", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.to.send(("report", data))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        found = warnings.WarningMessage(
            str(warning_message.message), warning_message.category, warning_message.filename, warning_message.lineno
        )
        try:
            pickle.dumps(found)
        except (pickle.PicklingError, AttributeError):  # a category that a test made
            found.category = Warning
        self.to.send(("warning", {"warning_message": found, "when": when, "nodeid": nodeid, "location": location}))


def _work(telling: _Telling, items: Iterator[pytest.Item], number: int) -> NoReturn:
    """Be a worker: run tests until there are no more."""
    code = 1
    try:
        atexit._clear()  # what the other process does at its end
        _separate(telling, number)
        for item, next_item in itertools.pairwise(itertools.chain(items, [None])):
            assert item is not None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        atexit._run_exitfuncs()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _separate(telling: _Telling, number: int) -> None:
    """Output and temporary files of its own; its reports go to the process that collected."""
    manager = telling.config.pluginmanager
    capture: Any = manager.get_plugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of the others, and so is the place in them
    capture.start_global_capturing()
    capture.suspend_global_capture()
    paths: Any = telling.config._tmp_path_factory  # type: ignore[attr-defined]
    paths._basetemp = paths.getbasetemp() / f"w{number}"
    paths._basetemp.mkdir(mode=0o700)
    manager.unregister(name="terminalreporter")
    manager.register(telling)
