"""Start a session of PyTorch training: `watch` in a program, or from the environment that `hypocenter run` set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import torch

from hypocenter.config import Config, from_json
from hypocenter.launcher import on_node
from hypocenter.session.beside_node import follow_node
from hypocenter.session.handle import Handle, begin
from hypocenter.session.rank import rank_and_world_size
from hypocenter.session.recording import Session
from hypocenter.session.run_directory import run_directory, watch_options
from hypocenter.tap.probe import record_probe

T = TypeVar("T")
_current: list[Any] = []


def watch(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    **options: Any,
) -> Handle:
    """Watch training from here on: see `hypocenter.session.watch`."""
    if _current:
        if scaler is not None:
            _current[-1].watch_scaler(scaler)
        return Handle(_current[-1], _current, owns=False, rank=rank_and_world_size)
    config = watch_options(options)
    session = Session(config, run_directory(config, *rank_and_world_size()), owns_run=True, command=tuple(sys.argv))
    follow_node(config, session.directory, session.warn, on_node())
    if model is not None:
        session.names.add_root(model)
    handle = Handle(session, _current, rank=rank_and_world_size)
    if scaler is not None:
        session.watch_scaler(scaler)
    return handle


def start_from_env() -> None:
    """Start the session of a process that `hypocenter run` launched. Called once torch has been imported."""
    directory, options = os.environ.get("HYPOCENTER_RUN"), os.environ.get("HYPOCENTER_CONFIG")
    if not directory or _current:
        return
    session = Session(from_json(options) if options else Config(), Path(directory), owns_run=False)
    begin(session, _current)
    follow_node(session.config, session.directory, session.warn, on_node())


def probe(value: T, label: str) -> T:
    """Watch a value inside a forward: see `hypocenter.session.probe`."""
    return record_probe(value, label)
