"""Start a session: `watch` in a program, or from the environment that `hypocenter run` set."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from hypocenter import launcher
from hypocenter.config import Config, from_json, resolve
from hypocenter.errors import UnknownNameError
from hypocenter.record.catalogue import sink_names
from hypocenter.record.layout import RUNS_FOLDER, new_run_directory
from hypocenter.record.shared_directory import shared_run_directory
from hypocenter.session.rank import rank_and_world_size
from hypocenter.session.recording import Session
from hypocenter.tap.probe import record_probe

T = TypeVar("T")
_current: list[Session] = []


class Handle:
    """A running session: a context manager; `close` ends it and writes what is left."""

    def __init__(self, session: Session, *, owns: bool = True) -> None:
        self._session = session
        self._owns = owns  # a session that `hypocenter run` or an outer `watch` started is not ours to end

    @property
    def directory(self) -> Path:
        """The run directory: give it to `hypocenter check`."""
        return self._session.directory

    def note(self, text: str) -> None:
        """Say something once, on stderr and in run.json."""
        self._session.warn(text)

    def close(self) -> None:
        """End the session, if this handle started it. Safe to call twice."""
        if not self._owns:
            return
        self._session.close()
        if self._session in _current:
            _current.remove(self._session)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    **options: Any,
) -> Handle:
    """Watch training from here on, in this process.

    Args:
        model: gives parameters and modules their names; when None, the outermost module that is called does.
        optimizer: need not be given (every optimizer is seen); accepted for readability.
        scaler: need not be given when it is torch's GradScaler or derived from it; one of another class with the same
            methods is seen from its first step when given, else from its first update on.
        options: any field of `hypocenter.config.Config`: level="modules", out="runs/mine", ...

    Raises:
        ConfigError: an unknown option, or a value it cannot have.
        ExistsError: `out` holds a recording and `force` is not set.
    """
    if _current:
        if scaler is not None:
            _current[-1].watch_scaler(scaler)
        return Handle(_current[-1], owns=False)
    if isinstance(options.get("out"), os.PathLike):
        options["out"] = os.fspath(options["out"])
    config = resolve(code=options)
    for name in config.sinks:
        if name not in sink_names() and not config.plugins:
            raise UnknownNameError(
                f"no sink is called {name!r}", where="sinks", fix=f"one of {', '.join(sink_names())}"
            )
    directory = _directory(config)
    session = Session(config, directory, owns_run=True, command=tuple(sys.argv))
    if model is not None:
        session.names.add_root(model)
    _begin(session)
    if scaler is not None:
        session.watch_scaler(scaler)
    return Handle(session)


def _directory(config: Config) -> Path:
    """One run directory for all ranks: rank 0 makes sure that it is new, the others take the same path."""
    task = launcher.task()
    if task is None:
        rank, world_size = rank_and_world_size()
        if world_size == 1:
            return new_run_directory(config.out, config.force)
        task = launcher.Task(number=rank, n_tasks=world_size, job=os.environ.get("MASTER_PORT", "0"))
    if task.number > 0:  # `watch` may be called on some ranks only: nobody waits for rank 0
        return Path(config.out or Path(RUNS_FOLDER) / f"job-{task.job}")
    return shared_run_directory(config.out, config.force, task, attempt=launcher.attempt(), warn=_say_nothing)


def _say_nothing(text: str) -> None:
    """Only tasks that wait have something to say."""


def start_from_env() -> None:
    """Start the session of a process that `hypocenter run` launched. Called once torch has been imported."""
    directory, options = os.environ.get("HYPOCENTER_RUN"), os.environ.get("HYPOCENTER_CONFIG")
    if not directory or _current:
        return
    _begin(Session(from_json(options) if options else Config(), Path(directory), owns_run=False))


def _begin(session: Session) -> None:
    session.attach()
    _current.append(session)
    atexit.register(session.close)
    if hasattr(os, "register_at_fork"):  # a DataLoader worker is not a rank
        os.register_at_fork(after_in_child=lambda: session.forked())


def probe(value: T, label: str) -> T:
    """Watch a value inside a forward: `x = hypocenter.probe(x, "after layer_norm")`. Returns it unchanged.

    Recorded at every level, at site "<module>.<label>", port "probe"; its gradient at port "grad_probe". Without a
    session, outside training, and inside torch.compile it does nothing.
    """
    return record_probe(value, label)
