"""What an observer may use of a session of torch. Which events it is told of: hypocenter.session.events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hypocenter.replay.engine import Replayer
from hypocenter.session import events
from hypocenter.session.agreement import Council, nobody
from hypocenter.session.events import Update
from hypocenter.session.framework import Framework
from hypocenter.session.torch_framework import TorchFramework
from hypocenter.tap.loader_batches import Begun, FromLoader, Handed
from hypocenter.tap.loop_tape import LoopTape
from hypocenter.tap.names import NameMap
from hypocenter.tap.self_averages import SelfAverages
from hypocenter.tap.tape import Tape


class LocalNorm:
    """The norm of the gradients of the step under way."""

    def __init__(self) -> None:
        self._norms: list[float] = []

    def add(self, norms: Sequence[float]) -> None:
        """Add norms of single gradients, with the loss scale in them."""
        self._norms += norms

    def take(self, scale: float) -> float | None:
        """Return the norm of all gradients since the last call, without the loss scale; None if there were none."""
        norms, self._norms = self._norms, []
        return math.hypot(*norms) / scale if norms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(events.Observed):
    """What every observer may use of its session."""

    names: NameMap
    tape: Tape
    replayer: Replayer
    framework: Framework = field(default_factory=TorchFramework)
    council: Council = field(default_factory=nobody)  # asks the other ranks: see hypocenter.session.agreement
    ride: Callable[[torch.Tensor, Callable[[Sequence[float]], None]], None] = lambda *_: None
    """Takes a float32 vector to the host with the next check of gradients: no transfer of its own."""
    loaded: Callable[[Sequence[torch.Tensor]], FromLoader | None] = lambda _: None
    """What is known of the first of these tensors that a DataLoader has handed out just so."""
    self_averages: SelfAverages = field(default_factory=SelfAverages)
    handed: Callable[[], Handed | None] = lambda: None  # the batch that a DataLoader has handed out last
    begun: Callable[[], Begun | None] = lambda: None  # a pass of a DataLoader that nobody has asked about
    prelude: Tape | None = None  # what the program computed before and beside what is on the tape
    take_loop: Callable[[LoopTape | None], None] = lambda _: None
    """Notes from here on, on this tape, all that the program computes outside of modules; None: no more."""
    reads_parameters: Callable[[], bool] = lambda: True  # whether the program, outside of modules, may have copied any
    local: LocalNorm = field(default_factory=LocalNorm)  # of gradients before their reduction, for who looks at steps
    recomputed: list[Callable[[torch.nn.Module], None]] = field(default_factory=list)  # told of calls inside backward
    beginning: list[Callable[[torch.nn.Module, Any], None]] = field(default_factory=list)
    """Told of each call of an outermost module before it begins, with its positional arguments. Must not raise."""
    directory: Path | None = None  # of the run; None: nowhere to write


class Observer(events.Observer[Context]):
    """Listens to training with torch; every method may be left as it is."""


__all__ = ["Context", "Observer", "Update"]
