"""The run directory of a program that calls `watch`: one for all its ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypocenter import launcher
from hypocenter.config import Config, resolve
from hypocenter.errors import UnknownNameError
from hypocenter.record.catalogue import sink_names, unknown_sinks
from hypocenter.record.layout import RUNS_FOLDER, new_run_directory
from hypocenter.record.shared_directory import shared_run_directory


def run_directory(config: Config, rank: int, world_size: int) -> Path:
    """Return the path of the run directory; rank 0 makes sure that it is new, the others take the same path.

    Args:
        config: names it, or leaves it to us.
        rank: as the framework knows it; asked only where no launcher told.
        world_size: so too.
    """
    task = launcher.task()
    if task is None:
        if world_size == 1:
            return new_run_directory(config.out, config.force)
        task = launcher.Task(number=rank, n_tasks=world_size, job=os.environ.get("MASTER_PORT", "0"))
    if task.number > 0:  # `watch` may be called on some ranks only: nobody waits for rank 0
        return Path(config.out or Path(RUNS_FOLDER) / f"job-{task.job}")
    return shared_run_directory(config.out, config.force, task, attempt=launcher.attempt(), warn=_say_nothing)


def watch_options(options: Mapping[str, Any]) -> Config:
    """Merge the options that `watch` was called with with those of files and the environment.

    Raises:
        ConfigError: an unknown option, or a value it cannot have.
        UnknownNameError: no sink has this name.
    """
    config = resolve(code={key: os.fspath(v) if isinstance(v, os.PathLike) else v for key, v in options.items()})
    for name in () if config.plugins else unknown_sinks(config.sinks):
        raise UnknownNameError(f"no sink is called {name!r}", where="sinks", fix=f"one of {', '.join(sink_names())}")
    return config


def _say_nothing(text: str) -> None:
    """Say nothing: only tasks that wait have something to say."""
