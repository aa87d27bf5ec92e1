"""Observers: each watches training for one concern (loss scale, misuse, lost updates) and gives rows to record.

One that fails is taken out and said so once; the others and the session go on. What an observer does at a step costs
the user's run: no synchronisation in a healthy step beyond what the session's own check has already paid for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hypocenter.config import Config
from hypocenter.nouns import Place, Reading
from hypocenter.replay.engine import Replayer
from hypocenter.session.agreement import Council, nobody
from hypocenter.session.check import Check
from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap
from hypocenter.tap.scaled import ScaledUpdate, Unscaling
from hypocenter.tap.tape import Microbatch, Tape


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every observer may use of its session."""

    config: Config
    names: NameMap
    clock: Clock
    tape: Tape
    replayer: Replayer
    label: Callable[[torch.Tensor], str]  # the user's name of a parameter
    rank: Callable[[], tuple[int, int]]  # (rank, world size)
    place: Callable[[], Place]  # where this rank stands, with its groups
    warn: Callable[[str], None]
    council: Council = field(default_factory=nobody)  # asks the other ranks: see hypocenter.session.agreement
    ride: Callable[[torch.Tensor, Callable[[Sequence[float]], None]], None] = lambda *_: None
    """Takes a float32 vector to the host with the next check of gradients: no transfer of its own."""
    recomputed: list[Callable[[torch.nn.Module], None]] = field(default_factory=list)  # told of calls inside backward
    directory: Path | None = None  # of the run; None: nowhere to write


@dataclass(slots=True, kw_only=True)
class Update:
    """One update of one optimizer, as the session sees it."""

    step: int
    optimizer: Any  # a torch optimizer, or the framework's wrapper of one
    parameters: Sequence[torch.Tensor]
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]  # with the loss scale in it unless scaled.is_unscaled
    microbatches: Sequence[Microbatch]
    check: Check  # losses and norms of this step, already on the host
    scaled: ScaledUpdate | None = None  # None: no loss scaler
    skipped: bool = False  # known after the update
    rows: list[Reading] = field(default_factory=list)  # of the observers that were told of it before this one


class Observer:
    """Listens to training; every method may be left as it is."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.rows: list[Reading] = []  # append here: taken at each update

    def attach(self) -> Callable[[], None]:
        """Set hooks of its own; returns the undo."""
        return lambda: None

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """`backward` was called on these roots."""

    def after_backward(self) -> None:
        """The gradients of this micro-batch are accumulated."""

    def before_clip(self, parameters: Sequence[torch.Tensor], check: Check) -> None:
        """`clip_grad_norm_` was called; `check` holds the norms as it will see them."""

    def before_unscale(self, unscaling: Unscaling) -> None:
        """The user calls `unscale_` before the step; the scale is still in the gradients."""

    def after_unscale(self, unscaling: Unscaling) -> None:
        """It is taken out, and the scaler has looked for values that are not finite."""

    def before_update(self, update: Update) -> None:
        """Gradients are final, parameters still old."""

    def after_update(self, update: Update) -> None:
        """The optimizer has updated, or the scaler has skipped it."""

    def at_end(self) -> None:
        """The session closes: what is known of the whole run. Not called in one that is killed."""


class Observers:
    """All observers of a session."""

    def __init__(self, context: Context) -> None:
        from hypocenter.session.observers import OBSERVERS  # here: each of them imports this module

        self._warn = context.warn
        self._all: list[Observer] = []
        self._undos: dict[Observer, Callable[[], None]] = {}
        for make in OBSERVERS:
            try:
                self._all.append(make(context))
            except Exception as error:
                self._complain(make.__name__, error)

    def attach(self) -> Callable[[], None]:
        """Attach them; returns the undo."""

        def attach_one(observer: Observer) -> None:
            self._undos[observer] = observer.attach()

        def undo() -> None:
            for observer in reversed(list(self._undos)):
                self._let_go(observer)

        self._each(attach_one)
        return undo

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Tell all."""
        self._each(lambda observer: observer.before_backward(roots))

    def after_backward(self) -> None:
        """Tell all."""
        self._each(lambda observer: observer.after_backward())

    def before_clip(self, parameters: Sequence[torch.Tensor], check: Check) -> None:
        """Tell all."""
        self._each(lambda observer: observer.before_clip(parameters, check))

    def before_unscale(self, unscaling: Unscaling) -> None:
        """Tell all."""
        self._each(lambda observer: observer.before_unscale(unscaling))

    def after_unscale(self, unscaling: Unscaling) -> None:
        """Tell all."""
        self._each(lambda observer: observer.after_unscale(unscaling))

    def before_update(self, update: Update) -> list[Reading]:
        """Tell all; their rows so far."""

        def tell(observer: Observer) -> None:
            observer.before_update(update)
            update.rows += observer.rows

        self._each(tell)
        return self._collected()

    def after_update(self, update: Update) -> list[Reading]:
        """Tell all; their rows since `before_update`."""
        self._each(lambda observer: observer.after_update(update))
        return self._collected()

    def at_end(self) -> list[Reading]:
        """Tell all; their last rows."""
        self._each(lambda observer: observer.at_end())
        return self._collected()

    def _collected(self) -> list[Reading]:
        rows: list[Reading] = []
        for observer in self._all:
            rows += observer.rows
            observer.rows = []
        return rows

    def _each(self, tell: Callable[[Observer], None]) -> None:
        for observer in list(self._all):
            try:
                tell(observer)
            except Exception as error:
                self._all.remove(observer)
                self._complain(type(observer).__name__, error)
                self._let_go(observer)

    def _let_go(self, observer: Observer) -> None:
        undo = self._undos.pop(observer, None)
        if undo is not None:
            with contextlib.suppress(Exception):  # the others are to come off too
                undo()

    def _complain(self, name: str, error: Exception) -> None:
        self._warn(f"{name} switched off after an internal error: {type(error).__name__}: {error}")
        if os.environ.get("HYPOCENTER_TRACEBACK"):
            import traceback

            traceback.print_exception(type(error), error, error.__traceback__)
