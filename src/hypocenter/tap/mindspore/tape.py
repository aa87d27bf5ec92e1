"""The tape of one step: which function was differentiated with which arguments, so that a replay can do it again.

One `GradCall` is one micro-batch: one call of what `value_and_grad`, `grad` or `GradOperation` made, wherever it
stands (in the program, in TrainOneStepCell, in Model.train). Arguments are referenced, not copied: MindSpore's tensors
are seldom changed in place, and those of a batch are not.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The states of the random generators, taken before the forward of a micro-batch."""

    generator: Any  # Tensor of ms.get_rng_state(): mint and nn layers draw from this generator
    of_functions: dict[Any, Any]  # from which functions of `ops` make the seeds of their operators, counting calls
    numpy: Any  # NumPy's and Python's own, which a forward may ask too
    python: Any

    def restore(self) -> None:
        """Set the generators to these states, so that they draw the same numbers again."""
        ms.set_rng_state(self.generator)
        _of_functions().clear()
        _of_functions().update(self.of_functions)
        np.random.set_state(self.numpy)
        random.setstate(self.python)


@dataclass(slots=True, kw_only=True)
class GradCall:
    """One micro-batch: a function was run forward and backward.

    Attributes:
        number: micro-batch within the step, from 0.
        batch: micro-batch over the run, from 0.
        fn: what is differentiated: the user's function or a Cell. With `has_aux` it is MindSpore's wrapper of it.
        args: positional arguments of the call.
        kwargs: the others.
        operation: MindSpore's own `_Grad` or `GradOperation`, with its flags (sens_param, has_aux, get_value ...).
        weights: parameters that gradients are taken for, in the order of `gradients`; () when none are.
        position: index or indices of arguments that gradients are taken for beside them; None when for none.
        random: before the forward; None where it could not be read.
        has_sens: the last argument is what backward starts from.
        has_value: MindSpore saw the function in Python (PyNative); False: it ran as a compiled graph.
        outputs: all that the forward gave, while `forward_done` is told; None before and after.
        loss: first output of the forward, as computed: with the loss scale in it if the user multiplied it in there.
        scale: loss scale that the gradients carry when they come out, and whether the loss carries it too.
        gradients: what came out, flat, in the order of `weights`. Dropped after the update that uses them.
        is_dropped: its arguments were given up, because they were larger than what may be kept.
    """

    number: int
    batch: int
    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    operation: Any = None
    weights: Sequence[Any] = ()
    position: Any = None
    random: RandomState | None = None
    has_sens: bool = False
    has_value: bool = True
    outputs: Any = None
    loss: Any = None
    loss_value: float | None = None  # on the host, once it was read
    scale: Scale | None = None
    norms: Any = None  # of the gradients as they came out: see tap.mindspore.gradients
    is_dropped: bool = False
    seconds: float = field(default_factory=time.perf_counter)


@dataclass(slots=True, kw_only=True)
class Scale:
    """A loss scale that was used in a micro-batch."""

    value: Any  # float, or a Tensor that holds what it was then
    kind: str = ""  # class name of the scaler
    scaler: Any = None  # whose scale it is; None: a number
    in_loss: bool = True  # False: it came in as what backward starts from (`sens`)

    def read(self) -> float:
        """Bring the scale to the host, and return it."""
        if not isinstance(self.value, float):
            self.value = float(self.value.asnumpy().reshape(-1)[0]) if isinstance(self.value, ms.Tensor) else 1.0
        return self.value


class Tape:
    """Micro-batches of the step under way.

    Args:
        keep_bytes: most memory that arguments of one step may pin.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self.microbatches: list[GradCall] = []

    def add(self, call: GradCall) -> None:
        """Add a micro-batch that begins; drop its arguments if they are larger than what may be kept."""
        self._kept_bytes += sum(int(t.nbytes) for t in tensors((call.args, dict(call.kwargs))))
        if self._kept_bytes > self._keep_bytes:
            call.args, call.kwargs, call.is_dropped = (), {}, True
        self.microbatches.append(call)

    def drop(self, call: GradCall) -> None:
        """Take a call off the tape: it was no micro-batch after all."""
        self.microbatches = [each for each in self.microbatches if each is not call]

    def clear(self) -> None:
        """Forget the micro-batches: the step is over."""
        self.microbatches, self._kept_bytes = [], 0


def random_state() -> RandomState | None:
    """Return the states of the generators as they are now; None where this MindSpore cannot tell."""
    try:
        return RandomState(
            generator=ms.get_rng_state(), of_functions=dict(_of_functions()), numpy=np.random.get_state(),
            python=random.getstate(),
        )  # fmt: skip
    except Exception:  # another version of MindSpore
        return None


def _of_functions() -> dict[Any, Any]:
    return importlib.import_module("mindspore.common.seed")._KERNEL_SEED  # its package has a function of that name


def tensors(tree: Any, depth: int = 6) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(tree, ms.Tensor):
        yield tree
    elif depth and isinstance(tree, (tuple, list)):
        for each in tree:
            yield from tensors(each, depth - 1)
    elif depth and isinstance(tree, Mapping):
        for each in tree.values():
            yield from tensors(each, depth - 1)


Undo = Callable[[], None]
