"""Steps of learning-rate schedulers and of weight averages, whoever calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils

from hypocenter.tap.own_frame import RAISED, hear

Told = Callable[[Any, Any], None]  # the scheduler or average, and the optimizer it belongs to or None


def attach(tell: Told, fail: Callable[[str], None]) -> Callable[[], None]:
    """Hear `step` of every scheduler class there is, and `AveragedModel.update_parameters`.

    A scheduler that steps others counts once; the first step that a constructor does is not told.

    Args:
        tell: called after each step.
        fail: told when that raises; nothing more is told then.

    Returns:
        The undo.
    """
    follower = _Follower(tell, fail)
    undos = [hear(kind, "step", follower.begin) for kind in _with_own_step(lr_scheduler.LRScheduler)]
    undos.append(hear(swa_utils.AveragedModel, "update_parameters", follower.begin))

    def undo() -> None:
        follower.is_on = False
        for each in reversed(undos):
            each()

    return undo


def _with_own_step(kind: type) -> list[type]:
    own = [kind] if "step" in vars(kind) else []
    return own + [each for sub in kind.__subclasses__() for each in _with_own_step(sub)]


class _Follower:
    def __init__(self, tell: Told, fail: Callable[[str], None]) -> None:
        self.is_on = True
        self._tell, self._fail = tell, fail
        self._depth = 0

    def begin(self, scheduler: Any, *_: Any) -> Callable[[Any], None]:
        """Note that a step begins; return what hears of its end."""
        self._depth += 1
        return functools.partial(self._end, scheduler)

    def _end(self, scheduler: Any, result: Any) -> None:
        self._depth -= 1
        if result is not RAISED:
            self._note(scheduler)

    def _note(self, scheduler: Any) -> None:
        if self._depth or not self.is_on or torch.compiler.is_compiling():
            return
        # The constructor's own step: newer torch marks it, older can be told by the count, which it begins.
        if getattr(scheduler, "_is_initial", False) or getattr(scheduler, "_step_count", None) == 1:
            return
        try:
            self._tell(scheduler, getattr(scheduler, "optimizer", None))
        except Exception as error:
            self.is_on = False
            self._fail(f"schedulers are no longer followed after an internal error: {error!r}")
