"""What an observer may use of a session of torch. Which events it is told of: hypocenter.session.events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

import torch

from hypocenter.replay.engine import Replayer
from hypocenter.session import events
from hypocenter.session.agreement import Council, nobody
from hypocenter.session.audits import Audits
from hypocenter.session.events import Update
from hypocenter.session.framework import Framework
from hypocenter.session.torch_framework import TorchFramework
from hypocenter.tap.after_calls import AfterCalls
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Tape


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
    recomputed: list[Callable[[torch.nn.Module], None]] = field(default_factory=list)  # told of calls inside backward
    after_calls: AfterCalls = field(default_factory=AfterCalls)  # hears of calls of modules, also inside others
    writer_of: Callable[[torch.Tensor], tuple[CodeType, int] | None] = lambda _: None
    """The line of the user's code that has written to a tensor since the last update, if one was seen."""
    optimizers: Callable[[], Sequence[torch.optim.Optimizer]] = lambda: ()  # all that the program has made
    directory: Path | None = None  # of the run; None: nowhere to write
    audits: Audits = field(init=False)  # which steps are audited

    def __post_init__(self) -> None:
        object.__setattr__(self, "audits", Audits(self.config.audit))


class Observer(events.Observer[Context]):
    """Listens to training with torch; every method may be left as it is."""


__all__ = ["Context", "Observer", "Update"]
