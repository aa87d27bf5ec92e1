"""Start a session of MindSpore training: `watch` in a program, or from the environment that `hypocenter run` set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

from hypocenter.config import Config, from_json
from hypocenter.session.beside_node import follow_node
from hypocenter.session.handle import Handle, begin
from hypocenter.session.mindspore.rank import on_node, rank_and_world_size
from hypocenter.session.mindspore.recording import Session
from hypocenter.session.run_directory import run_directory, watch_options
from hypocenter.tap.mindspore.probe import record_probe

T = TypeVar("T")
_current: list[Any] = []


def watch(model: Any = None, optimizer: Any = None, scaler: Any = None, **options: Any) -> Handle:
    """Watch training from here on: see `hypocenter.session.watch`."""
    if _current:
        _know(_current[-1], model, scaler)
        return Handle(_current[-1], _current, owns=False, rank=rank_and_world_size)
    config = watch_options(options)
    session = Session(config, run_directory(config, *rank_and_world_size()), owns_run=True, command=tuple(sys.argv))
    follow_node(config, session.directory, session.warn, on_node())
    handle = Handle(session, _current, rank=rank_and_world_size)
    _know(session, model, scaler)
    return handle


def start_from_env() -> None:
    """Start the session of a process that `hypocenter run` launched. Called once MindSpore has been imported."""
    directory, options = os.environ.get("HYPOCENTER_RUN"), os.environ.get("HYPOCENTER_CONFIG")
    if not directory or _current:
        return
    session = Session(from_json(options) if options else Config(), Path(directory), owns_run=False)
    begin(session, _current)
    follow_node(session.config, session.directory, session.warn, on_node())


def probe(value: T, label: str) -> T:
    """Watch a value inside a construct: see `hypocenter.session.probe`."""
    return record_probe(value, label)


def _know(session: Session, model: Any, scaler: Any) -> None:
    if model is not None:
        session.names.add_root(model)
    if scaler is not None:
        session.scalers.watch(type(scaler))
