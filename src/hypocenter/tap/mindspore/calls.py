"""Calls of outermost cells: of models inside a differentiated function, of training cells, of whole compiled steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from mindspore import nn  # pyright: ignore[reportMissingImports]
from mindspore.common import api  # pyright: ignore[reportMissingImports]

from hypocenter.tap.after_calls import AfterCalls
from hypocenter.tap.mindspore.grads import GradTap
from hypocenter.tap.mindspore.mentions import mentioned_through
from hypocenter.tap.mindspore.names import children, is_mindspores_own, is_optimizer
from hypocenter.tap.mindspore.patches import Patches


class CallListener(Protocol):
    """What is told of calls."""

    def on_root(self, cell: Any) -> None: ...
    def begin_call(self, cell: Any) -> None: ...
    def end_call(self, cell: Any, outputs: Any, failed: bool) -> None: ...


class CallTap:
    """Tells of training cells, and of the cells that a differentiated function calls.

    A training cell is one that holds an optimizer: TrainOneStepCell, those of Model.train, and the user's own.

    Attributes:
        paused: nothing is told.
        after_calls: who hears of calls of certain cells inside a model.
    """

    def __init__(self, listener: CallListener, grads: GradTap) -> None:
        self._listener, self._grads = listener, grads
        self.paused = False
        self.after_calls = AfterCalls()
        self._training: Any = None  # the training cell, or compiled step, under way
        self._known: dict[int, bool] = {}  # id of a compiled function -> whether it holds an optimizer
        self._is_inside = False  # a cell that a differentiated function called

    @property
    def is_training(self) -> bool:
        """Whether a training cell is under way."""
        return self._training is not None

    @property
    def training_cell(self) -> Any:
        """The training cell that is under way, or None."""
        return self._training

    def attach(self, patches: Patches) -> None:
        """Patch cells and compiled functions; `patches` takes it off."""
        patches.wrap(nn.Cell, "__call__", self._called)
        patches.wrap(api._JitExecutor, "__call__", self._compiled)

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:
            is_outer = not (self._is_inside or self.paused)
            if is_outer and self._grads.in_forward and not is_optimizer(cell):
                self._is_inside = True
                try:
                    self._listener.on_root(cell)
                    found = original(cell, *args, **kwargs)
                finally:
                    self._is_inside = False
            elif is_outer and not self.is_training and self._grads.current is None and is_training_cell(cell):
                return self._whole(cell, original, cell, *args, **kwargs)
            else:
                found = original(cell, *args, **kwargs)
            if self.after_calls and not self.paused:
                self.after_calls.tell(cell, args, found)
            return found

        return __call__

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(executor: Any, *args: Any, **kwargs: Any) -> Any:
            is_busy = self.paused or self._training is not None or self._grads.current is not None
            if is_busy or not self._is_step(executor.fn):
                return original(executor, *args, **kwargs)
            return self._whole(executor.fn, original, executor, *args, **kwargs)

        return __call__

    def _whole(self, thing: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._training = thing
        self._listener.begin_call(thing)
        try:
            outputs = original(*args, **kwargs)
        except BaseException:
            self._training = None
            self._listener.end_call(thing, None, True)
            raise
        self._training = None
        self._listener.end_call(thing, outputs, False)
        return outputs

    def _is_step(self, function: Any) -> bool:
        """Return whether a compiled function of the user's mentions an optimizer."""
        code = getattr(function, "__code__", None)
        if code is None or getattr(function, "__module__", "").startswith("mindspore."):
            return False
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = optimizer_in(function) is not None
        return known


def is_training_cell(cell: Any) -> bool:
    """Return whether a cell, or one that MindSpore wraps in it, holds an optimizer, and is none."""
    found = _training.get(cell)
    if found is None:
        found = _training[cell] = not is_optimizer(cell) and optimizer_in(cell) is not None
    return found


_training: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_DEEPEST = 3  # wrappers around a training cell: of a data set, of a pipeline


def optimizer_in(thing: Any, depth: int = _DEEPEST) -> Any:
    """Return the optimizer that a training cell, or a compiled function, holds or mentions; None without one."""
    if not isinstance(thing, nn.Cell):
        return next((each for each in mentioned_through(thing) if is_optimizer(each)), None)
    held = list(children(thing).values())
    found = next((each for each in held if is_optimizer(each)), None)
    if found is None and depth:
        inner = [each for each in held if isinstance(each, nn.Cell) and children(each)]
        found = next((o for each in inner if (o := optimizer_in(each, depth - 1)) is not None), None)
    return found


def models_in(thing: Any) -> list[Any]:
    """Return the models of a training cell, or a cell that is differentiated itself; none of a function."""
    if not isinstance(thing, nn.Cell):
        return []
    inner = [c for c in children(thing).values() if c is not None]
    if not is_training_cell(thing):
        return [thing]
    models = [c for c in inner if not is_mindspores_own(c) and not is_training_cell(c)]
    return models or [m for c in inner if is_training_cell(c) for m in models_in(c)]
