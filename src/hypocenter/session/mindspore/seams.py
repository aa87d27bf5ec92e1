"""What the session tells its parts, and when. Each class here does nothing: a part derives from it and does something.

In one step, in this order (`k` micro-batches, PyNative):

    begin_call(cell)              only where a training cell (TrainOneStepCell, or a cell that holds an optimizer) is
                                  called: the forward of its first micro-batch may run before `begin_microbatch`
        begin_microbatch(call)    a differentiated function is about to run forward        \\ k times; without a
        forward_done(call)        it has; call.loss is there                               |  training cell these
        end_microbatch(call)      backward has run, gradients are there                    /  come alone
        before_step(optimizer)    an optimizer was called with gradients
        collect(step, optimizer)  rows of the step are wanted
        before_update(...)        what is returned goes in instead of its gradients
        before_rule(due)          nothing comes in between any more
        after_update(optimizer)   the optimizer has returned
    end_call(cell)

A step that is skipped (loss scaling) has `collect` with optimizer None and neither `before_update` nor `after_update`.
`paused()` is entered while a replay runs: nothing that happens in it is training. Exceptions are the session's matter:
whatever is raised (other than StopTraining) switches that part off, once, and training goes on.
In a compiled graph none of these are called except begin_call and end_call, and, for a differentiated function that is
called from Python in GRAPH mode, the three of the micro-batch with `call.has_value` False.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypocenter.config import Config
from hypocenter.nouns import Place, Reading, StepRecord
from hypocenter.session.check import Check
from hypocenter.session.guard import StopTraining
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.tape import GradCall, Tape, Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every part may use of its session."""

    config: Config
    directory: Path  # of the run
    names: NameMap  # the user's names of cells and parameters
    clock: Clock  # step, microbatch, batch, next_order(); `clock.recording`: inside training
    tape: Tape
    patches: Patches  # patch methods of MindSpore's classes through it, so that the compiler never sees them
    warn: Callable[[str], None]  # says a line once
    rank: Callable[[], tuple[int, int]]  # (rank, world size)
    rank_directory: Callable[[], Path]  # of this rank
    place: Callable[[], Place]
    paused: Callable[[], contextlib.AbstractContextManager[None]]  # enter it to run the user's code again
    close: Callable[[], None]  # ends the session, before StopTraining is raised
    told: dict[str, str] = field(default_factory=dict[str, str])  # run.json: name -> what was imposed, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """An update that is about to be made, and the step that it ends.

    Attributes:
        gradients: (parameter, gradient) as the optimizer gets them.
        check: losses and norms as the program gives them.
        norm: L2 norm of all gradients before clipping; None where it is not known.
        scale: loss scale that losses and gradients came out of backward with; 1 when there is none.
    """

    step: int
    optimizer: Any
    gradients: Sequence[tuple[Any, Any]]
    microbatches: Sequence[GradCall]
    check: Check
    norm: float | None = None
    scale: float = 1.0


class Part:
    """A part of the session."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def attach(self) -> Undo:
        """Set hooks of its own; returns the undo. Called once, when the session starts."""
        return lambda: None

    def on_root(self, cell: Any) -> None:
        """A model that was not seen before is about to run in training (names know it already). `watch(net)` too."""

    def begin_call(self, cell: Any) -> None:
        """A training cell is called from outside."""

    def end_call(self, cell: Any) -> None:
        """It has returned, or raised."""

    def begin_microbatch(self, call: GradCall) -> None:
        """Forward is about to run."""

    def forward_done(self, call: GradCall) -> None:
        """It has run."""

    def end_microbatch(self, call: GradCall) -> None:
        """Backward has run."""

    def before_rule(self, due: Due) -> None:
        """The optimizer is about to apply its rule: nothing comes in between any more."""

    def after_update(self, optimizer: Any) -> None:
        """The optimizer has returned, or was refused; the clock still shows the step that is over."""

    def rows(self) -> list[Reading]:
        """Rows since the last call, asked for when a step is over."""
        return []

    def at_end(self) -> list[Reading]:
        """The session closes: last rows."""
        return []


class Levels(Part):
    """Which taps are on: rows of modules, parameters, state and tensors (session/mindspore/levels.py)."""

    def collect(self, step: int, optimizer: Any, gradients: Sequence[tuple[Any, Any]] = ()) -> list[Reading]:
        """All rows of the step so far, in execution order.

        Args:
            optimizer: that is about to update; None when the step is skipped.
            gradients: (parameter, gradient) as the optimizer gets them; () when the step is skipped.
        """
        return []

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Off while a replay runs."""
        yield


class Imposing(Part):
    """What the program is made to do differently, because it was asked for (session/mindspore/imposed/)."""

    def before_first_forward(self, net: Any) -> None:
        """`net`, a model, is about to run for the first time: after its parameters were made, before any value."""

    def before_step(self, optimizer: Any) -> None:
        """An optimizer was called: what is recorded of its options is to be what was imposed."""

    def before_update(
        self, optimizer: Any, parameters: Sequence[Any], gradients: Sequence[Any], step: int
    ) -> Sequence[Any]:
        """The step is recorded. Returns the gradients that it is to use (the same, when nothing is imposed).

        Args:
            parameters: of the optimizer, in the order of its gradients.
            gradients: as the program gives them.
        """
        return gradients

    def let_go(self, reason: str) -> None:
        """Hypocenter switches itself off: what was asked for can no longer be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A step whose loss or gradients are not finite."""

    step: int
    check: Check
    bad_params: tuple[str, ...]  # before any clipping spread them
    microbatches: tuple[GradCall, ...]
    optimizer: Any  # None: no optimizer has been called, the step is skipped
    scale: float | None  # loss scale; None: there is no scaler
    clip: str  # function that spread them; "" when nothing did
    healthy_steps: int  # that went before


class Investigator(Part):
    """Replays what failed and writes evidence (replay/mindspore/, wired by session/mindspore/failures.py)."""

    def investigate(self, failed: Failed) -> str:
        """Called before the update of a step that failed. Writes evidence; returns its id, "" when it wrote none.

        A step that a loss scaler is about to skip comes here too: whether it is news is for the investigator to tell.
        """
        return ""

    def went_well(self, check: Check, step: int, scale: float | None) -> None:
        """A step whose loss and gradients were finite."""

    def rows(self) -> list[Reading]:
        """Rows of replays since the last call (`replay=True` on each)."""
        return []


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
        """All that was dumped of a step that is over.

        Args:
            finding: id of the evidence that was written of it without the dump; "" when there is none.
            scale: loss scale; None: there is no scaler.
            skipped: whether its update was left out.
            healthy_steps: that went before.
        """
        return GraphStep()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Nothing is dumped while a replay runs."""
        yield


class Seams:
    """The parts of one session. A call of one that fails takes it out, and says so once; the others go on.

    Args:
        warn: takes one line of text.
        levels, imposing, investigator, graphs: see their classes.
        instead_of_replays: takes over from an investigator that fails.
        others: parts that only listen.
    """

    def __init__(
        self,
        *,
        warn: Callable[[str], None],
        levels: Levels,
        imposing: Imposing,
        investigator: Investigator,
        graphs: Graphs,
        instead_of_replays: type[Investigator] = Investigator,
        others: Sequence[Part] = (),
    ) -> None:
        self.imposing: Imposing = _Careful(imposing, Imposing, warn)  # type: ignore[assignment]
        self.levels: Levels = _Careful(levels, Levels, warn)  # type: ignore[assignment]
        self.investigator: Investigator = _Careful(investigator, instead_of_replays, warn)  # type: ignore[assignment]
        self.graphs: Graphs = _Careful(graphs, Graphs, warn)  # type: ignore[assignment]
        self._others: list[Part] = [_Careful(other, Part, warn) for other in others]  # type: ignore[misc]
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def parts(self) -> list[Part]:
        """All of them, in the order in which they are told."""
        return [self.imposing, self.levels, self.investigator, self.graphs, *self._others]

    def see_root(self, cell: Any) -> None:
        """A model is about to run, for the first time."""
        if cell in self._seen:
            return
        self._seen.add(cell)
        self.imposing.before_first_forward(cell)
        for part in self.parts():
            part.on_root(cell)


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
        if os.environ.get("HYPOCENTER_TRACEBACK"):
            traceback.print_exception(type(error), error, error.__traceback__)
        self._part = self._kind(self._part.context)
