"""What a session of MindSpore consists of beside its observers: parts that are asked for something, and may refuse.

Each class here does nothing: a part derives from it and does something. All of them hear of training as observers do
(hypocenter.session.events). Beside these events, in one step:

    imposing.before_step(optimizer)       an optimizer was called with gradients
    levels.collect(step, optimizer)       rows of the step are wanted; optimizer is None in a step that is skipped
    imposing.impose(...)                  what is returned goes in instead of its gradients; not in a skipped step

`paused()` is entered while a replay runs: nothing that happens in it is training.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.config import Config
from hypocenter.nouns import Reading, StepRecord
from hypocenter.session import events
from hypocenter.session.audits import Audits
from hypocenter.session.check import Check
from hypocenter.session.failed import Failed
from hypocenter.session.guard import StopTraining, show_traceback
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.tape import Tape, Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(events.Observed):
    """What every part may use of its session. Inside training `clock.recording` is True."""

    directory: Path  # of the run
    names: NameMap  # the user's names of cells and parameters
    tape: Tape
    patches: Patches  # patch methods of MindSpore's classes through it, so that the compiler never sees them
    rank_directory: Callable[[], Path]  # of this rank
    paused: Callable[[], contextlib.AbstractContextManager[None]]  # enter it to run the user's code again
    close: Callable[[], None]  # ends the session, before StopTraining is raised
    told: dict[str, str] = field(default_factory=dict[str, str])  # run.json: name -> what was imposed, in words

    def __post_init__(self) -> None:
        """Audit on an accelerator only what was asked for: how much memory is free there is not known."""
        is_free = ms.get_context("device_target") == "CPU" or self.config.audit != Config().audit
        object.__setattr__(self, "audits", Audits(self.config.audit if is_free else "never"))


@dataclass(slots=True, kw_only=True)
class Due(events.Update):
    """An update that is about to be made, and the step that it ends.

    Attributes:
        norm: L2 norm of all gradients before clipping; None where it is not known.
        scale: loss scale that losses and gradients came out of backward with; 1 when there is none.
    """

    norm: float | None = None
    scale: float = 1.0


class Part(events.Observer[Context]):
    """A part of the session."""


class Levels(Part):
    """Which taps are on: rows of modules, parameters, state and tensors (session/mindspore/levels.py)."""

    def collect(self, step: int, optimizer: Any, gradients: Sequence[tuple[Any, Any]] = ()) -> list[Reading]:
        """Return all rows of the step so far, in execution order.

        Args:
            optimizer: that is about to update; None when the step is skipped.
            gradients: (parameter, gradient) as the optimizer gets them; () when the step is skipped.
        """
        return []

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Switch the taps off while a replay runs."""
        yield


class Imposing(Part):
    """What the program is made to do differently, because it was asked for (session/mindspore/imposed/)."""

    def before_first_forward(self, net: Any) -> None:
        """Hear that a model is about to run for the first time: its parameters exist, but no value was computed yet."""

    def before_step(self, optimizer: Any) -> None:
        """Put in what was imposed on an optimizer that was called, so that its options are recorded as imposed."""

    def impose(self, optimizer: Any, parameters: Sequence[Any], gradients: Sequence[Any], step: int) -> Sequence[Any]:
        """Return the gradients that the step is to use (the same when nothing is imposed); the step is recorded.

        Args:
            parameters: of the optimizer, in the order of its gradients.
            gradients: as the program gives them.
        """
        return gradients

    def let_go(self, reason: str) -> None:
        """End the process if something was imposed: Hypocenter switches itself off and can no longer do it."""


class Investigator(Part):
    """Replays what failed and writes evidence (replay/mindspore/, wired by session/mindspore/failures.py)."""

    def investigate(self, failed: Failed) -> str:
        """Write evidence before the update of a step that failed; return its id, "" when none was written.

        A step that a loss scaler is about to skip comes here too: whether it is news is for the investigator to tell.
        """
        return ""

    def went_well(self, check: Check, step: int, scale: float | None) -> None:
        """Hear of a step whose loss and gradients were finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStep:
    """What MindSpore's dump tells of a step that ran, or partly ran, as compiled graphs."""

    rows: Sequence[Reading] = ()
    record: StepRecord | None = None  # loss, rate and bad gradients, as far as they are known; None: no dump of it
    finding: str = ""  # id of the evidence of why the loss or gradients are not finite


class Graphs(Part):
    """What runs as compiled graphs in GRAPH mode (session/mindspore/graph.py)."""

    @property
    def is_dumping(self) -> bool:
        """Whether calls of graphs are looked into."""
        return False

    def collect(self, step: int, *, scale: float | None, skipped: bool, healthy_steps: int, finding: str) -> GraphStep:
        """Return all that was dumped of a step that is over.

        Args:
            finding: id of the evidence that was written of it without the dump; "" when there is none.
            scale: loss scale; None: there is no scaler.
            skipped: whether its update was left out.
            healthy_steps: that went before.
        """
        return GraphStep()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Dump nothing while a replay runs."""
        yield


class Seams:
    """The parts of one session. A call of one that fails takes it out, and says so once; the others go on.

    Args:
        context: of the session.
        levels, imposing, investigator, graphs: see their classes.
        instead_of_replays: takes over from an investigator that fails.
        observers: classes of parts that only listen.
    """

    def __init__(
        self,
        context: Context,
        *,
        levels: Levels,
        imposing: Imposing,
        investigator: Investigator,
        graphs: Graphs,
        instead_of_replays: type[Investigator] = Investigator,
        observers: Sequence[Callable[[Any], events.Observer[Any]]] = (),
    ) -> None:
        warn = context.warn
        self.imposing: Imposing = _Careful(imposing, Imposing, warn)  # type: ignore[assignment]
        self.levels: Levels = _Careful(levels, Levels, warn)  # type: ignore[assignment]
        self.investigator: Investigator = _Careful(investigator, instead_of_replays, warn)  # type: ignore[assignment]
        self.graphs: Graphs = _Careful(graphs, Graphs, warn)  # type: ignore[assignment]
        self.observers = events.Observers(observers, context, warn)
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def attach(self) -> list[Undo]:
        """Attach all parts; return the undo of each."""
        return [*(part.attach() for part in self._parts()), self.observers.attach()]

    def tell(self, event: str, *args: Any) -> None:
        """Tell all parts and observers of an event."""
        for part in self._parts():
            getattr(part, event)(*args)
        self.observers.tell(event, *args)

    def see_root(self, cell: Any) -> None:
        """Tell all parts of a model that is about to run for the first time."""
        if cell in self._seen:
            return
        self._seen.add(cell)
        self.imposing.before_first_forward(cell)
        self.tell("on_root", cell)

    def _parts(self) -> list[Part]:
        return [self.imposing, self.levels, self.investigator, self.graphs]


class _Careful:
    """A part whose methods do nothing once one has failed: a stand-in of class `kind` takes over."""

    def __init__(self, part: Part, kind: type[Part], warn: Callable[[str], None]) -> None:
        self._part, self._kind, self._warn = part, kind, warn

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name == "paused" or not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except StopTraining:
                raise
            except Exception as error:
                self._take_out(error)
                return getattr(self._part, name)(*args, **kwargs)

        return call

    def _take_out(self, error: Exception) -> None:
        self._warn(f"{type(self._part).__name__} switched off after an internal error: {type(error).__name__}: {error}")
        show_traceback(error)
        self._part = self._kind(self._part.context)
