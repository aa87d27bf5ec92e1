"""What the session of any framework tells those who watch training, and when.

In one step, in this order (`k` micro-batches). An event in brackets is told in one framework only: where the other has
no such moment, or needs none.

    on_root(model)              a model that was not seen before is about to run in training
    [begin_call(cell)]          MindSpore: a training cell (TrainOneStepCell, or a cell that holds an optimizer) is
                                called: the forward of its first micro-batch may run before `begin_microbatch`
      [begin_microbatch(call)]  MindSpore: a differentiated function is about to run forward      \\
      [forward_done(call)]      MindSpore: it has; call.loss, .outputs are there                  |  k times
      [before_backward(roots)]  torch: `backward` was called on these tensors                     |
      [after_backward()]        torch: its gradients are accumulated                              |
      [end_microbatch(call, gradients)]  MindSpore: backward has run                              /
      before_unscale(unscaling) the program has a loss scale taken out before the step
      [after_unscale(unscaling)]  torch: it is taken out
      before_clip(parameters, max_norm)  gradients are about to be clipped to a norm
      seen_before_clip(parameters, check)  their norms as the clip saw them: at once, or as they arrive with the check
      [before_check(scaled)]    torch: a loss scaler is about to step; its gradients are checked next
      before_update(update)     gradients are final, parameters still old
      [before_rule(optimizer, step)]  torch, at audited steps: one, also inside that of a scaler or framework, begins
      [after_rule(optimizer)]   torch: and ends
      after_update(update)      the optimizer has returned; update.skipped: a loss scaler has left the update out
    [end_step(step)]            MindSpore: the step is over, also one that ran as a compiled graph: then alone
    [end_call(cell)]            MindSpore
    at_end()

Inside a compiled graph of MindSpore nothing is told but begin_call, end_call and end_step, and, for a differentiated
function that is called from Python in GRAPH mode, those of the micro-batch with `call.has_value` False.
Nothing that a replay does is told.

Whoever fails is taken out and that is said once; the others and the session go on. What an observer does at a step
costs the user's run: no synchronisation in a healthy step beyond what the session's own check has already paid for.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from hypocenter.config import Config
from hypocenter.nouns import Place, Reading
from hypocenter.session.audits import Audits
from hypocenter.session.check import Check
from hypocenter.session.device_errors import device_error
from hypocenter.session.guard import StopTraining, show_traceback
from hypocenter.tap.after_calls import AfterCalls
from hypocenter.tap.clock import Clock

if TYPE_CHECKING:
    from hypocenter.session.framework import Framework
    from hypocenter.tap.scaled import ScaledUpdate, Unscaling


class Names(Protocol):
    """The names that the user's program has for its parameters and models."""

    def parameters(self) -> Sequence[tuple[str, Any]]:
        """Return all (name, parameter) that are known, in the order of the model."""
        ...

    def roots(self) -> Sequence[Any]:
        """Return the outermost models."""
        ...


class Tape(Protocol):
    """What is kept of the step under way, so that it can be replayed."""

    @property
    def microbatches(self) -> Sequence[Any]:
        """The micro-batches since the last update."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an observer may use of a session, whatever the framework."""

    config: Config
    clock: Clock
    names: Names
    tape: Tape
    label: Callable[[Any], str]  # the user's name of a parameter
    rank: Callable[[], tuple[int, int]]  # (rank, world size)
    place: Callable[[], Place]  # where this rank stands, with its groups
    warn: Callable[[str], None]  # says a line once
    framework: Framework  # its arithmetic and its optimizers
    optimizers: Callable[[], Sequence[Any]] = lambda: ()  # all that the program has made; may take a while
    names_of: Callable[[Any], Sequence[str]] = lambda _: ()  # all names of a parameter, which modules may share
    after_calls: AfterCalls = field(default_factory=AfterCalls)  # hears of calls of modules, also inside others
    writer_of: Callable[[Any], tuple[CodeType, int] | None] = lambda _: None
    """The line of the user's code that has written to a tensor since the last update, if one was seen."""
    by_hand: list[Callable[[], None]] = field(default_factory=list)
    """Told when the program itself is about to add gradients of other ranks, the first time in a step."""
    audits: Audits = field(init=False)  # which steps are audited

    def __post_init__(self) -> None:
        object.__setattr__(self, "audits", Audits(self.config.audit))


ContextT = TypeVar("ContextT", bound=Observed)


@dataclass(slots=True, kw_only=True)
class Update:
    """One update of one optimizer, as the session sees it."""

    step: int
    optimizer: Any  # of the framework, or a wrapper of one; None where a skipped step does not tell
    parameters: Sequence[Any]
    gradients: Sequence[tuple[Any, Any]]  # with the loss scale in it unless scaled.is_unscaled
    microbatches: Sequence[Any]
    check: Check  # losses and norms of this step, already on the host
    scaled: ScaledUpdate | None = None  # None: no loss scaler
    skipped: bool = False  # known after the update
    rows: list[Reading] = field(default_factory=list)  # of the observers that were told of it before this one

    @property
    def ids(self) -> frozenset[int]:
        """The ids of its parameters, which are the same object as long as an optimizer of torch holds the same ones."""
        found: frozenset[int] | None = getattr(self.parameters, "ids", None)
        return frozenset(map(id, self.parameters)) if found is None else found


class Observer(Generic[ContextT]):
    """Listens to training; every method may be left as it is.

    Attributes:
        needs: without several ranks, or without a loss scaler, it is not told of the events `OFTEN`.
        until: the last step of whose events `OFTEN` it is told; None: of all.
        is_urgent: it wants `seen_before_clip` while the gradients are as the clip found them. The host waits for it.
    """

    needs: Literal["", "ranks", "scaler"] = ""
    until: int | None = None
    is_urgent = False

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether the observer has anything to do under these options; otherwise it is not made."""
        return True

    def __init__(self, context: ContextT) -> None:
        self.context = context
        self.rows: list[Reading] = []  # append here: taken at each update

    def at_rest(self) -> Iterable[str]:
        """Return the events `OFTEN` that are of no use to it, as things stand, until something is new.

        In torch; asked once the first steps are over. New are a model, an optimizer or other parameters of it, another
        number of micro-batches, a first clip, a loss scaler, and what is not finite. All are told at some steps anyway.
        """
        return ()

    def attach(self) -> Callable[[], None]:
        """Set hooks of the observer's own and return the undo. Called once, when the session starts."""
        return lambda: None

    def on_root(self, model: Any) -> None:
        """Hear that a model is about to run in training for the first time, or was given to `watch`; names know it."""

    def begin_call(self, cell: Any) -> None:
        """Hear that a training cell is called from outside."""

    def end_call(self, cell: Any) -> None:
        """Hear that a training cell has returned, or raised."""

    def begin_microbatch(self, call: Any) -> None:
        """Hear that the forward of a micro-batch is about to run."""

    def forward_done(self, call: Any) -> None:
        """Hear that the forward of a micro-batch has run."""

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Hear that `backward` was called on these roots."""

    def after_backward(self) -> None:
        """Hear that the gradients of this micro-batch are accumulated."""

    def end_microbatch(self, call: Any, gradients: Sequence[Any]) -> None:
        """Hear that backward has run and returned the micro-batch's gradients, in the order of `call.weights`."""

    def before_clip(self, parameters: Sequence[Any], max_norm: float) -> None:
        """Hear that gradients are about to be clipped to a norm; NaN where the norm is not known."""

    def seen_before_clip(self, parameters: Sequence[Any], check: Check) -> None:
        """Hear the norms as a clip saw them, in `check`; if it has peaks too, the gradients are clipped by now."""

    def before_unscale(self, unscaling: Unscaling) -> None:
        """Hear that the user calls `unscale_` before the step; the scale is still in the gradients."""

    def after_unscale(self, unscaling: Unscaling) -> None:
        """Hear that the scale is taken out, and that the scaler has looked for values that are not finite."""

    def before_check(self, scaled: ScaledUpdate) -> None:
        """Hear that gradients are final; what is put on the way now comes to the host together with their check."""

    def before_update(self, update: Update) -> None:
        """Hear that an update is about to be made: gradients are final, parameters still old."""

    def before_rule(self, optimizer: Any, step: int) -> None:
        """Hear, at audited steps, that the step of an optimizer of torch or of a scaler or framework begins."""

    def after_rule(self, optimizer: Any) -> None:
        """Hear that the optimizer has applied its rule."""

    def after_update(self, update: Update) -> None:
        """Hear that the optimizer has updated, or that the scaler has skipped the update."""

    def end_step(self, step: int) -> None:
        """Hear that a step is over, however it ended; the clock shows the next one."""

    def at_end(self) -> None:
        """Note what is known of the whole run: the session closes. Not called in a process that is killed."""


AWAKE, AWAKE_EVERY, AWAKE_ALSO = 64, 32, 1000  # steps: the first ones, and every such one, as `doubling` has
MOST_KNOWN = 16  # lists of parameters
OFTEN = frozenset(
    {"before_backward", "after_backward", "before_clip", "seen_before_clip", "before_update", "after_update"}
)


class Observers:
    """All observers of a session.

    Args:
        kinds: their classes, in the order in which they are told.
        context: that each of them is made with.
        warn: takes one line of text.
    """

    def __init__(
        self, kinds: Sequence[Callable[[Any], Observer[Any]]], context: Any, warn: Callable[[str], None]
    ) -> None:
        self._warn = warn
        self._all: list[Observer[Any]] = []
        self._undos: dict[Observer[Any], Callable[[], None]] = {}
        self._rank: Callable[[], tuple[int, int]] = context.rank
        self.may_scale = True  # there may be a loss scaler: so until an update came without one
        self._has_scaled = False
        for make in kinds:
            try:
                if not isinstance(make, type) or make.is_wanted(context.config):
                    self._all.append(make(context))
            except Exception as error:
                self._complain(getattr(make, "__name__", str(make)), error)
        self._hearing: dict[tuple[str, bool, bool], list[tuple[Observer[Any], Callable[..., Any]]]] = {}
        self._done: set[Observer[Any]] = set()  # that are not told of events `OFTEN` any more
        self._next_done = self._first_done()
        self._names, self._audits = context.names, context.audits
        self._known: dict[int, tuple[frozenset[int], int]] = {}  # by its id: parameters; micro-batches of their update
        self._generation = -1  # of names
        self._has_clips = self._may_clip = False  # since the last update, and before it
        self._resting: dict[Observer[Any], frozenset[str]] | None = None  # None: all are told
        self._told_at_rest: dict[str, list[tuple[Observer[Any], Callable[..., Any]]]] = {}

    def _who_hears(self, event: str) -> list[tuple[Observer[Any], Callable[..., Any]]]:
        """Return who listens to this event now, which depends on whether there are several ranks, and a loss scaler."""
        has_ranks = event not in OFTEN or self._rank()[1] > 1
        has_scaler = event not in OFTEN or self.may_scale
        key, rests = (event, has_ranks, has_scaler), self._resting
        found = self._hearing.get(key) if rests is None else self._told_at_rest.get(event)
        if found is None:
            lacks = {needs for needs, is_there in (("ranks", has_ranks), ("scaler", has_scaler)) if not is_there}
            found = [
                (each, getattr(each, event))
                for each in self._all
                if getattr(type(each), event) is not getattr(Observer, event)
                and each.needs not in lacks
                and (event not in OFTEN or each not in self._done)
                and (rests is None or event not in rests.get(each, ()))
            ]
            if rests is None:
                self._hearing[key] = found
            else:
                self._told_at_rest[event] = found
        return found

    def _first_done(self) -> float:
        """Return the first step after which an observer has seen all that it waits for; infinity if there is none."""
        return min((o.until for o in self._all if o.until is not None and o not in self._done), default=math.inf)

    def _let_done_go(self, step: int) -> None:
        self._done |= {each for each in self._all if each.until is not None and each.until < step}
        self._next_done = self._first_done()
        self._hearing.clear()
        self._wake()

    def _is_new(self, update: Update) -> bool:
        """Return whether anything about this update is other than it was before, and note it."""
        ids, n = getattr(update.parameters, "ids", None), len(update.microbatches)
        if ids is None:  # a list that is made anew for each update
            return True
        generation = getattr(self._names, "generation", 0)
        known = self._known.get(id(ids))
        is_known = known is not None and known[1] == n
        is_new = not is_known or generation != self._generation or self._has_clips != self._may_clip
        if is_new:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[id(ids)], self._generation, self._may_clip = (ids, n), generation, self._has_clips
        self._has_clips = False
        return is_new

    def _is_awake_at(self, step: int) -> bool:
        return step < AWAKE or not (step % AWAKE_EVERY and step % AWAKE_ALSO) or self._audits.is_due(step)

    def _wake(self) -> None:
        self._resting = None

    def _rest(self) -> None:
        """Tell those that have no use for it nothing from here on."""
        self._resting = {}
        for each in list(self._all):
            try:
                if events := frozenset(each.at_rest()):
                    self._resting[each] = events
            except Exception as error:
                self._switch_off(each, error)
        self._told_at_rest.clear()

    @property
    def are_urgent(self) -> bool:
        """Whether any observer wants to see gradients before they are clipped, although that makes the host wait."""
        for observer, _ in self._who_hears("seen_before_clip"):  # noqa: SIM110 (a generator is a call for each)
            if observer.is_urgent:
                return True
        return False

    def attach(self) -> Callable[[], None]:
        """Attach all observers; return the undo."""
        for observer in list(self._all):
            try:
                self._undos[observer] = observer.attach()
            except Exception as error:
                self._switch_off(observer, error)

        def undo() -> None:
            for observer in reversed(list(self._undos)):
                self._let_go(observer)

        return undo

    def tell(self, event: str, *args: Any, rows: list[Reading] | None = None) -> None:
        """Tell those who listen to this event.

        Args:
            rows: what each of them has noted is added here before the next one is told.
        """
        if event == "before_unscale":
            self.may_scale = True
            self._wake()
        elif event == "before_clip":
            self._has_clips = True
            if not self._may_clip:
                self._wake()
        told = None if self._resting is None else self._told_at_rest.get(event)
        for observer, hear in self._who_hears(event) if told is None else told:
            try:
                hear(*args)
                if rows is not None and observer.rows:
                    rows += observer.rows
            except StopTraining:
                raise
            except Exception as error:
                if device_error(error) is not None:
                    raise  # no observer is to blame: the session ends
                self._switch_off(observer, error)

    def before_update(self, update: Update) -> list[Reading]:
        """Tell all observers that an update is about to be made, and return their rows so far."""
        if update.step > self._next_done:
            self._let_done_go(update.step)
        is_same = not self._is_new(update) and update.check.is_finite
        if update.scaled is not None:
            self._has_scaled = self.may_scale = True
            is_same = False
        if self._resting is not None and not is_same:
            self._wake()
        elif self._resting is None and is_same and not self._is_awake_at(update.step):
            self._rest()
        self.tell("before_update", update, rows=update.rows)
        return self.collected()

    def after_update(self, update: Update) -> list[Reading]:
        """Tell all observers that the update is over, and return their rows since `before_update`."""
        self.tell("after_update", update)
        self.may_scale = self._has_scaled
        if self._resting is not None and self._is_awake_at(update.step + 1):
            self._wake()
        return self.collected()

    def at_end(self) -> list[Reading]:
        """Tell all observers that the session closes, and return their last rows."""
        self.tell("at_end")
        return self.collected()

    def collected(self) -> list[Reading]:
        """Return the rows of all observers since the last time, and clear them."""
        rows: list[Reading] = []
        for observer in self._all:
            if observer.rows:
                rows += observer.rows
                observer.rows = []
        return rows

    def _switch_off(self, observer: Observer[Any], error: Exception) -> None:
        self._all.remove(observer)
        self._hearing.clear()  # those who are being told go on with the list that they were in
        self._told_at_rest.clear()
        self._complain(type(observer).__name__, error)
        self._let_go(observer)

    def _let_go(self, observer: Observer[Any]) -> None:
        undo = self._undos.pop(observer, None)
        if undo is not None:
            with contextlib.suppress(Exception):  # the others are to come off too
                undo()

    def _complain(self, name: str, error: Exception) -> None:
        self._warn(f"{name} switched off after an internal error: {type(error).__name__}: {error}")
        show_traceback(error)
