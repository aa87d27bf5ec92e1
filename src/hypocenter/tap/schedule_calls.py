"""Steps of learning-rate schedulers and of weight averages, whoever calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils

Told = Callable[[Any, Any], None]  # the scheduler or average, and the optimizer it belongs to or None


def attach(tell: Told, fail: Callable[[str], None]) -> Callable[[], None]:
    """Patch `step` of every scheduler class there is and `AveragedModel.update_parameters`.

    A scheduler that steps others counts once; the first step that a constructor does is not told.

    Args:
        tell: called after each step.
        fail: told when that raises; nothing more is told then.

    Returns:
        The undo.
    """
    follower = _Follower(tell, fail)
    undos = [follower.patch(kind, "step") for kind in _with_own_step(lr_scheduler.LRScheduler)]
    undos.append(follower.patch(swa_utils.AveragedModel, "update_parameters"))

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

    def patch(self, owner: type, name: str) -> Callable[[], None]:
        original = vars(owner)[name]

        @functools.wraps(original)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                result = original(scheduler, *args, **kwargs)
            finally:
                self._depth -= 1
            self._note(scheduler)
            return result

        setattr(owner, name, step)

        def undo() -> None:
            if vars(owner).get(name) is step:
                setattr(owner, name, original)

        return undo

    def _note(self, scheduler: Any) -> None:
        if self._depth or not self.is_on or torch.compiler.is_compiling():
            return
        if getattr(scheduler, "_is_initial", False):
            return
        try:
            self._tell(scheduler, getattr(scheduler, "optimizer", None))
        except Exception as error:
            self.is_on = False
            self._fail(f"schedulers are no longer followed after an internal error: {error!r}")
