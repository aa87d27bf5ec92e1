"""Replays of the failed step with something changed: was it finite, with what gradients, and how long did it take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.diagnose.origin import blame, killed_infinities
from hypocenter.replay import adjudicate
from hypocenter.replay.case import HIDDEN, Budget, Scene, is_finite
from hypocenter.replay.cure.search import OutOfBudget
from hypocenter.replay.engine import Replayed, Replayer, ReplayImpossible
from hypocenter.replay.impossible import OutOfTime
from hypocenter.replay.tracing import Tracing
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.out_of_memory import give_back, is_out_of_memory
from hypocenter.tap.tape import Microbatch

MOST_ELEMENTS = 200_000_000  # of all gradients: copies in float64, 1.6 GB, must not end a job that only failed a step

Around = Callable[[], contextlib.AbstractContextManager[Any]]
"""Makes the change: a fresh context manager that a replay runs in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One replay of all micro-batches of the step."""

    finite: bool
    gradients: tuple[torch.Tensor | None, ...] = ()  # per parameter, summed over micro-batches, loss scale taken out
    n_bad: int = 0  # parameters whose gradient was not finite
    seconds: float = 0.0
    why_not: str = ""  # it raised


class Rehearsal:
    """Replay one failed step in variations, at a loss scale of our choice, within a budget.

    Args:
        scene: the traced failure.
        replayer, tracing: of the step's tape.
        budget: replays and seconds from now on.
    """

    def __init__(self, scene: Scene, replayer: Replayer, tracing: Tracing, budget: Budget) -> None:
        self.scene, self.budget = scene, budget
        self.scale = scene.case.loss_scale  # of the replays; set it to train with another
        self.n_replays = 0
        self.error = ""  # what the last replay raised
        self._is_out_of_memory = False  # one of them was: nothing more is tried
        self.was_late = False  # it was the time for the step that ended it: that says nothing about the change
        self._replayer, self._tracing = replayer, tracing
        self._started = time.perf_counter()
        first = scene.microbatch
        others = [m for m in scene.case.microbatches if m is not first and not replayer.why_not(m)]
        self.microbatches: list[Microbatch] = [*([first] if first is not None else []), *others]

    @property
    def seconds(self) -> float:
        """The seconds since the first replay."""
        return time.perf_counter() - self._started

    @property
    def is_spent(self) -> bool:
        """Whether the budget has ended."""
        is_late = self.seconds > self.budget.seconds or self._replayer.deadline.is_over
        return self._is_out_of_memory or is_late or self.n_replays >= self.budget.replays

    def finite(self, around: Around = contextlib.nullcontext, **how: Any) -> bool:
        """Return whether loss and all gradients are finite, in every micro-batch of the step; counted as a replay.

        Args:
            around: the change. One that raises is no cure.
            how: more arguments of `Replayer.run`.

        Raises:
            OutOfBudget: the replay was not begun, or not ended.
        """
        self._spend()
        holds = self.holds(around, **how)
        if self.was_late:
            raise OutOfBudget
        return holds

    def holds(self, around: Around = contextlib.nullcontext, **how: Any) -> bool:
        """Return the same without counting it. False also where the time did not suffice: see `was_late`."""
        self.error, self.was_late = "", False
        try:
            if self.scene.case.trigger in HIDDEN:
                return self._hides_nothing(around, how)
            return bool(self.microbatches) and all(self._replay(m, around, how).finite for m in self.microbatches)
        except Exception as error:  # the user's own code runs here, with types that it may not expect
            self._note_memory(error)
            self.error, self.was_late = _in_words(error), isinstance(error, OutOfTime)
            return False

    def rehearse(
        self, around: Around = contextlib.nullcontext, parameters: Sequence[torch.Tensor] = (), **how: Any
    ) -> Rehearsed:
        """Return the gradients of the whole step, of `MOST_ELEMENTS` at most, and its time. Not counted as a replay.

        Args:
            around: the change.
            parameters: whose gradients; those of the models when not given.
            how: more arguments of `Replayer.run`.
        """
        wanted = parameters or self.scene.parameters
        sums: list[torch.Tensor | None] = [None] * len(wanted)
        is_kept = sum(parameter.numel() for parameter in wanted) <= MOST_ELEMENTS
        finite, started = True, time.perf_counter()
        try:
            for microbatch in self.microbatches:
                replayed = self._replay(microbatch, around, how, wanted)
                finite = finite and replayed.finite
                if is_kept:
                    sums = [_add(total, grad) for total, grad in zip(sums, replayed.grads, strict=True)]
                del replayed
        except Exception as error:
            self._note_memory(error)
            return Rehearsed(finite=False, why_not=_in_words(error))
        seconds = time.perf_counter() - started
        unscaled = tuple(None if total is None else total / (self.scale or 1.0) for total in sums)
        n_bad = sum(grad is not None and not is_finite(grad) for grad in unscaled)
        return Rehearsed(finite=finite, gradients=unscaled, n_bad=n_bad, seconds=seconds)

    def next_site(self, around: Around) -> str | None:
        """Return where the failure starts with the change made; None when it does not, or when it cannot be followed.

        Raises:
            OutOfBudget: the replay was not begun.
        """
        self._spend()
        microbatch = self.scene.microbatch
        if microbatch is None:
            return None
        try:
            tracer, replayed = self._tracing.run(microbatch, around=around(), seed_scale=self._seed_scale)
        except Exception:
            return None
        targets = [tracer.edge_to(t) for t in (*replayed.values, *replayed.grads) if t is not None]
        found = blame(tracer.trace(), targets)
        return None if found is None or found.origin is None else tracer.nodes[found.origin].place.site

    @property
    def _seed_scale(self) -> float:
        recorded = self.scene.case.loss_scale
        return self.scale / recorded if self.scale and recorded else 1.0

    def _replay(
        self, microbatch: Microbatch, around: Around, how: dict[str, Any], parameters: Sequence[torch.Tensor] = ()
    ) -> Replayed:
        parameters = parameters or self.scene.parameters
        return self._replayer.run(microbatch, parameters, around=around(), seed_scale=self._seed_scale, **how)

    def _hides_nothing(self, around: Around, how: dict[str, Any]) -> bool:
        """Return whether the change leaves no overflow in a step that was finite because somebody hid one."""
        if self.scene.microbatch is None:
            raise ReplayImpossible("the step cannot be replayed as a whole")
        tracer, replayed = self._tracing.run(self.scene.microbatch, around=around(), **how)
        still = (
            adjudicate.rerun_float64(tracer.nodes[k.origin], self._replayer.deadline)
            for k in killed_infinities(tracer.trace())
        )
        return replayed.finite and not any(rerun.finite for rerun in still)

    def _note_memory(self, error: Exception) -> None:
        if is_out_of_memory(error):
            self._is_out_of_memory = True
            give_back(error)

    def _spend(self) -> None:
        if self.is_spent:
            raise OutOfBudget
        self.n_replays += 1


def _in_words(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:160]}"


def _add(total: torch.Tensor | None, grad: torch.Tensor | None) -> torch.Tensor | None:
    if grad is None:
        return total
    wide = in_float64(grad.to_dense() if grad.is_sparse else grad)
    return wide if total is None else total + wide
