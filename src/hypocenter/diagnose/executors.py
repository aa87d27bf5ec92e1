"""What looks at the ranks of a recording: this process, or several processes of this machine.

The same function is asked of parts of the ranks, and what comes back is merged; an answer does not depend on the parts.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hypocenter.detect import engine, group_engine
from hypocenter.diagnose.partial import Partial, look_at_ranks
from hypocenter.diagnose.rows import bad_steps
from hypocenter.errors import ConfigError
from hypocenter.record.rank_files import Knowledge
from hypocenter.record.reader import RecordedRun, open_run

_PARTS_OF_WORKER = 4  # so that one that is slow, or dies, holds up little
_ATTEMPTS = 3  # of a part whose worker died


class Task:
    """The question, and the recording it is asked of."""

    def __init__(self, recorded: RecordedRun, plugins: tuple[str, ...]) -> None:
        self.recorded, self.plugins = recorded, plugins

    @cached_property
    def engines(self) -> tuple[engine.Engine, group_engine.GroupEngine]:
        """Rules over one rank, and over ranks."""
        over_ranks = group_engine.GroupEngine(group_engine.group_rules(self.plugins), len(self.recorded.ranks))
        return engine.Engine(engine.rules(self.plugins)), over_ranks

    @cached_property
    def whole(self) -> np.ndarray:
        """Steps of an imported run of which all rows are wanted."""
        is_asked = self.recorded.run.imported is not None and "imported" in self.engines[0].reads
        return bad_steps(self.recorded).to_numpy() if is_asked else np.zeros(0, np.int64)

    def look(self, ranks: Sequence[int]) -> Partial:
        """Map: some ranks."""
        return look_at_ranks(self.recorded, ranks, *self.engines, self.whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    partial: Partial
    known: dict[tuple[str, int], Knowledge]


def run(task: Task, on: str = "") -> tuple[Partial, tuple[str, ...]]:
    """Ask about all ranks.

    Args:
        task: what is asked.
        on: "" for this process, "processes:N" for N of this machine, or the scheduler of a Dask cluster as
            "dask://HOST:PORT".

    Returns:
        What came of all ranks, and what is to be said of how it was done.

    Raises:
        ConfigError: nothing is known by that name.
    """
    kind, _, where = on.partition(":")
    ranks = task.recorded.ranks
    if not on or len(ranks) < 2:
        return task.look(ranks), ()
    if kind == "processes" and where.isdigit() and 0 < int(where) <= 256:
        return _on_processes(task, int(where))
    if kind == "dask" and where.startswith("//"):
        return _on_dask(task, where.removeprefix("//"))
    raise ConfigError(f"{on!r} is nothing to look at ranks on", fix="processes:4, or dask://HOST:PORT")


def parts(ranks: Sequence[int], n_workers: int) -> list[list[int]]:
    """Ranks that lie together, in parts of the same size."""
    n = min(len(ranks), n_workers * _PARTS_OF_WORKER)
    return [list(map(int, part)) for part in np.array_split(np.array(ranks), n)]


def look_in_worker(directory: str, ranks: Sequence[int], plugins: tuple[str, ...]) -> _Answer:
    """Map, in another process."""
    recorded = open_run(Path(directory))
    partial = Task(recorded, plugins).look(ranks)
    return _Answer(partial=partial, known=recorded.known(ranks))


work = look_in_worker


def _merged(task: Task, answers: Sequence[_Answer]) -> Partial:
    whole = Partial()
    for answer in answers:
        whole.merge(answer.partial)
        task.recorded.learn(answer.known)
    return whole


def _on_processes(task: Task, n_workers: int) -> tuple[Partial, tuple[str, ...]]:
    """Processes that are spawned: they share nothing with this one, whatever threads it has."""
    from concurrent.futures import ProcessPoolExecutor, as_completed  # cannot be imported while the interpreter ends
    from concurrent.futures.process import BrokenProcessPool

    todo, answers, n_lost = parts(task.recorded.ranks, n_workers), list[_Answer](), 0
    directory, context = str(task.recorded.directory.resolve()), multiprocessing.get_context("spawn")
    for _ in range(_ATTEMPTS):
        left: list[list[int]] = []
        with ProcessPoolExecutor(min(n_workers, len(todo)), mp_context=context) as pool:
            waiting = {pool.submit(work, directory, part, task.plugins): part for part in todo}
            for future in as_completed(waiting):
                try:
                    answers.append(future.result())
                except BrokenProcessPool:
                    left.append(waiting[future])
        todo = left
        if not todo:
            break
        n_lost += 1
    for part in todo:  # this process is left
        answers.append(_Answer(partial=task.look(part), known={}))
    said = f"a worker died {n_lost} time{'s' if n_lost > 1 else ''}: its ranks were looked at again" if n_lost else ""
    return _merged(task, answers), (said,) if said else ()


def _on_dask(task: Task, address: str) -> tuple[Partial, tuple[str, ...]]:
    """A Dask cluster whose workers see the recording under the same path; Dask does a dead worker's parts again."""
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("dask is not installed", fix="pip install 'hypocenter[dask]'") from error
    directory = str(task.recorded.directory.resolve())
    try:
        client = Client(f"tcp://{address}", timeout=10, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError("the cluster does not answer", where=f"dask://{address}", why=str(error)) from error
    with client:
        n_workers = max(1, sum(client.nthreads().values()))
        wanted = [
            client.submit(work, directory, part, task.plugins, pure=False)
            for part in parts(task.recorded.ranks, n_workers)
        ]
        return _merged(task, client.gather(wanted)), ()
