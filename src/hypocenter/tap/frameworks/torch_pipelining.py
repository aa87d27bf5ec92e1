"""torch.distributed.pipelining: each stage's module keeps the names that it has in the whole model.

A schedule runs several micro-batches forward before the first backward; whose forward runs is told to the session.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from hypocenter.tap.frame_variables import self_of
from hypocenter.tap.frameworks.door import Door
from hypocenter.tap.topology.pipelining import note_stage

needs = "torch.distributed.pipelining.stage"


def attach(door: Door) -> Callable[[], None]:
    """Note each stage before it runs a micro-batch forward; returns the undo."""
    kind = sys.modules[needs]._PipelineStageBase
    original = kind.forward_one_chunk
    known: set[int] = set()
    is_trained = [_is_running("forward_one_chunk")]  # before the first micro-batch stages try out shapes, with values

    def note(stage: Any) -> None:
        if id(stage) not in known:
            known.add(id(stage))
            note_stage(stage)
            door.add_root(stage.submod, is_part=True)

    @functools.wraps(original)
    def forward_one_chunk(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        if not is_trained[0]:
            is_trained[0] = True
            door.forget()
        chunk = args[0] if args else kwargs.get("fwd_chunk_id")
        door.begin_chunk(chunk if isinstance(chunk, int) else None)
        try:
            return original(self, *args, **kwargs)
        finally:
            door.begin_chunk(None)

    kind.forward_one_chunk = forward_one_chunk
    running = _running(kind)
    if running is not None:
        note(running)

    def undo() -> None:
        if kind.forward_one_chunk is forward_one_chunk:
            kind.forward_one_chunk = original

    return undo


def _is_running(function: str) -> bool:
    """Return whether a function of this name is being called."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def _running(kind: type) -> Any:
    """Return the stage whose module has just been called, as adapters are attached at a first call; or None."""
    frame = sys._getframe(2)
    while frame is not None:
        if isinstance(stage := self_of(frame), kind):
            return stage
        frame = frame.f_back
    return None
