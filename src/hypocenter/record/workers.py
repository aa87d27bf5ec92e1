"""What looks at the ranks of a recording: this process, processes of this machine, or a cluster.

The same function is asked of parts, and its answers come in the order of the parts: no answer depends on where it was
worked out. Functions and answers travel, so a function is one of a module, or a `functools.partial` of one.
"""

from __future__ import annotations

import multiprocessing
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from hypocenter.errors import ConfigError
from hypocenter.record.pandas_left_out import leave_pandas_out

P = TypeVar("P")
A = TypeVar("A")
_AHEAD = 2  # parts of each worker that are asked before their answers are wanted: what has come waits in memory
_MOST_DEATHS = 3  # then this process looks at what is left


@dataclass(slots=True)
class _Asked(Generic[P]):
    """A part, and what will bring its answer; None: nothing will."""

    part: P
    future: Any
    of: Any  # the workers that were asked


class Workers(ABC):
    """Other processes than this one."""

    def __init__(self) -> None:
        self.n_died = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of how it was done."""
        n = self.n_died
        return (f"a worker died {n} time{'s' if n > 1 else ''}: its ranks were looked at again",) if n else ()

    @property
    @abstractmethod
    def n(self) -> int:
        """How many there are."""

    @abstractmethod
    def _at_work(self) -> Any:
        """Whatever has `submit`, and is there until `_lost`."""

    @abstractmethod
    def _dead(self) -> tuple[type[BaseException], ...]:
        """What a future raises whose worker died."""

    def start(self, load: Callable[[int], None]) -> None:  # noqa: B027 - those of a cluster are there already
        """Let each get ready while this process does something else.

        Args:
            load: takes a number, and imports what they will be asked; it travels, and may raise what asking will.
        """

    def _submit(self, ask: Callable[[P], A], part: P) -> Any:
        return self._at_work().submit(ask, part)

    def _lost(self) -> None:  # noqa: B027 - a cluster mends itself
        """A worker died."""

    def run(self, ask: Callable[[P], A], parts: Sequence[P]) -> Iterator[A]:
        """The answers, in the order of the parts. What a dead worker was asked is asked again."""
        waiting: deque[_Asked[P]] = deque()
        todo, most, n_deaths, dead = iter(parts), self.n * _AHEAD, 0, self._dead()
        while True:
            waiting.extend(self._asked(ask, part) for part in islice(todo, most - len(waiting)))
            if not waiting:
                return
            asked = waiting.popleft()
            try:
                answer = asked.future.result() if asked.future is not None else ask(asked.part)
            except dead:
                if asked.of is self._at_work():  # of those asked before it died, each brings the same news
                    n_deaths, self.n_died = n_deaths + 1, self.n_died + 1
                    self._lost()
                lost = [asked, *waiting]
                is_here = n_deaths >= _MOST_DEATHS
                waiting = deque(self._again(ask, each, dead, is_here=is_here) for each in lost)
                continue
            yield answer

    def _asked(self, ask: Callable[[P], A], part: P) -> _Asked[P]:
        try:
            return _Asked(part, self._submit(ask, part), self._at_work())
        except self._dead():  # since the last answer
            self.n_died += 1
            self._lost()
            return _Asked(part, self._submit(ask, part), self._at_work())

    def _again(
        self, ask: Callable[[P], A], asked: _Asked[P], dead: tuple[type[BaseException], ...], *, is_here: bool
    ) -> _Asked[P]:
        if asked.future is not None and asked.future.done() and not isinstance(asked.future.exception(), dead):
            return asked
        return _Asked(asked.part, None, None) if is_here else self._asked(ask, asked.part)


class Processes(Workers):
    """Processes of this machine. They are spawned, sharing nothing with this one, and end with whoever holds them."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n, self._pool = n, None

    @property
    def n(self) -> int:
        """How many there are."""
        return self._n

    def start(self, load: Callable[[int], None]) -> None:
        """They are there when they are first asked otherwise, and import as long as others do."""
        with suppress(*self._dead()):  # `run` mends it
            for number in range(self._n):
                self._submit(load, number)

    def _at_work(self) -> Any:
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor  # cannot be imported while the interpreter ends

            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._n, mp_context=context, initializer=leave_pandas_out)
            # Left to the end of the interpreter, its threads may still be closing what that wakes them by.
            weakref.finalize(self, self._pool.shutdown)
        return self._pool

    def _dead(self) -> tuple[type[BaseException], ...]:
        from concurrent.futures.process import BrokenProcessPool

        return (BrokenProcessPool,)

    def _lost(self) -> None:
        self._pool = None


class Dask(Workers):
    """A Dask cluster whose workers see the recording under the same path; Dask itself asks again where a worker dies.

    Raises:
        ConfigError: Dask is not installed, or the scheduler does not answer.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        try:
            from distributed import Client  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError("dask is not installed", fix="pip install 'hypocenter[dask]'") from error
        try:
            self._client: Any = Client(f"tcp://{address}", timeout=10, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ConfigError("the cluster does not answer", where=f"dask://{address}", why=str(error)) from error
        weakref.finalize(self, self._client.close)

    @property
    def n(self) -> int:
        """Threads of all workers."""
        return max(1, sum(self._client.nthreads().values()))

    def _at_work(self) -> Any:
        return self._client

    def _submit(self, ask: Callable[[P], A], part: P) -> Any:
        return self._client.submit(ask, part, pure=False)

    def _dead(self) -> tuple[type[BaseException], ...]:
        from distributed import KilledWorker  # pyright: ignore[reportMissingImports]

        return (KilledWorker,)


def workers_of(on: str) -> Workers | None:
    """Those of a name; None for "", which is this process alone.

    Args:
        on: "processes:N" for N of this machine, or the scheduler of a Dask cluster as "dask://HOST:PORT".

    Raises:
        ConfigError: nothing is known by that name, or it does not answer.
    """
    kind, _, where = on.partition(":")
    if not on:
        return None
    if kind == "processes" and where.isdigit() and 0 < int(where) <= 256:
        return Processes(int(where))
    if kind == "dask" and where.startswith("//"):
        return Dask(where.removeprefix("//"))
    raise ConfigError(f"{on!r} is nothing to look at ranks on", fix="processes:4, or dask://HOST:PORT")
