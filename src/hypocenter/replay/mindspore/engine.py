"""Does a micro-batch of MindSpore again, in place: same function, inputs, random state and flags; everything restored.

The parameters are still the ones the step started from, because replays happen before the optimizer uses the gradients.
MindSpore's gradients are results of a function, so nothing of the program's is overwritten by taking them again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Protocol

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore import amp, nn, ops  # pyright: ignore[reportMissingImports]
from mindspore.common.api import _pynative_executor  # pyright: ignore[reportMissingImports]
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]

from hypocenter.replay import python_state
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.host import flat, is_finite, is_floating
from hypocenter.replay.python_state import CONSTANTS, Kind, Undo
from hypocenter.tap.mindspore.mentions import is_library, mentioned_through
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall, random_state

_DROPOUT = ("Dropout", "Dropout2D", "Dropout3D")
_OF_SHAPE = ("StandardNormal", "StandardLaplace", "UniformReal")  # called with the shape of what they draw
_SEED = 0xD12A  # any number


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a replay computed."""

    values: list[Any] = field(default_factory=list[Any])  # what backward started from
    grads: list[Any] = field(default_factory=list[Any])  # per weight of the call
    drew: bool = False  # other values were dropped than in the run: MindSpore cannot draw them again

    @property
    def finite(self) -> bool:
        """Whether loss and all gradients are finite."""
        return all(is_finite(t) for t in (*self.values, *self.grads))


class Tracer(contextlib.AbstractContextManager[Any], Protocol):
    """What sees every operator."""

    def forward_over(self, roots: Sequence[Any]) -> None:
        """Note that backward begins, from these values."""
        ...


class Replayer:
    """Execute micro-batches again.

    Args:
        names: the user's names.
        paused: entered while user code runs again: nothing that happens in it is training.
    """

    def __init__(self, names: NameMap, paused: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._names, self._paused = names, paused

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which user code may run otherwise than it does by itself."""
        return self._paused()

    def why_not(self, call: GradCall) -> str:
        """Return why this micro-batch cannot be replayed; "" if it can."""
        if call.is_dropped:
            return "the inputs of this step are larger than keep_mb"
        if not call.has_value or ms.get_context("mode") == ms.GRAPH_MODE:
            return "the step ran as a compiled graph: single operators cannot be seen in it"
        if not call.weights:
            return "gradients were taken for inputs only, not for parameters"
        return ""

    def named_inputs(self, call: GradCall) -> list[tuple[str, Any]]:
        """Return the tensors that the function was called with, with the arguments they were given as."""
        found: list[tuple[str, Any]] = []
        for position, value in enumerate(_arguments(call)):
            inside = list(flat(value))
            found += [(f"[{position}]" if len(inside) == 1 else f"[{position}][{i}]", t) for i, t in enumerate(inside)]
        for name, value in call.kwargs.items():
            found += [(name, t) for t in flat(value)]
        return found

    def run(
        self,
        call: GradCall,
        *,
        tracer: Tracer | None = None,
        around: contextlib.AbstractContextManager[Any] | None = None,
        rows: tuple[int, Sequence[int]] | None = None,
        changed: Mapping[int, Any] = MappingProxyType({}),
        seed_scale: float = 1.0,
        eager: bool = False,
        must_leave_no_trace: bool = False,
    ) -> Replayed:
        """Run forward, loss and backward again.

        Args:
            tracer: sees every operator.
            around: entered around all of it (a remedy).
            rows: (batch size, indices): keep only these rows of every input whose first dimension is the batch.
            changed: id of an input -> what the function is given in its place.
            seed_scale: multiplies the gradient that backward starts from (1 / loss scale: as without scaling).
            eager: run what was compiled (`@ms.jit`) operator by operator.
            must_leave_no_trace: the step has not failed: not where a cell holds what cannot be put back. Implies
                `eager`: what draws is not hidden then.

        Raises:
            ReplayImpossible: with the reason.
        """
        cells = [cell for _, cell in self._names.cells()]
        if why := self.why_not(call) or (why_not(cells, call.fn) if must_leave_no_trace else ""):
            raise ReplayImpossible(why)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._paused())
            stack.enter_context(self._state_put_back(call))
            stack.enter_context(kept(cells, call.fn))
            if eager or must_leave_no_trace:
                stack.enter_context(_uncompiled())
            draws = stack.enter_context(OwnDraws())
            if seed_scale != 1.0 and call.scale is not None and call.scale.in_loss:
                stack.enter_context(unscaled())  # in fp16 the scaled loss itself may be too large
                seed_scale = 1.0
            if around is not None:
                stack.enter_context(around)
            stack.enter_context(_cleared_on_error())
            if tracer is not None:
                stack.enter_context(tracer)
            result = self._run(call, tracer, partial(_fresh, rows=rows, changed=changed), seed_scale)
            result.drew = draws.seen
            return result

    def _run(self, call: GradCall, tracer: Tracer | None, fresh: Callable[[Any], Any], seed_scale: float) -> Replayed:
        result = Replayed()
        kwargs = {name: fresh(value) for name, value in call.kwargs.items()}

        def forward(*args: Any) -> Any:
            out = call.fn(*args, **kwargs)
            roots = out[0] if getattr(call.operation, "has_aux", False) and isinstance(out, (tuple, list)) else out
            result.values = [t for t in flat(roots) if is_floating(t)]
            if tracer is not None:
                tracer.forward_over(result.values)
            return roots

        has_seed = bool(getattr(call.operation, "sens_param", False))
        args = [fresh(value) for value in _arguments(call)]
        gradient: Any = ops.GradOperation(get_by_list=True, sens_param=has_seed or seed_scale != 1.0)
        if has_seed:
            args.append(_scaled(call.args[-1], seed_scale))
        elif seed_scale != 1.0:
            args.append(_scaled(_ones_like(call), seed_scale))
        grads = gradient(forward, ms.ParameterTuple(list(call.weights)))(*args)
        result.grads = list(flat(grads))
        return result

    @contextlib.contextmanager
    def _state_put_back(self, call: GradCall) -> Generator[None, None, None]:
        """Set the random state as before the forward; afterwards restore it and what is no weight (running means)."""
        held = {id(weight) for weight in call.weights}
        buffers = [(p, p.asnumpy().copy()) for _, p in self._names.parameters() if id(p) not in held]
        before = random_state()
        if call.random is not None:
            call.random.restore()
        try:
            yield
        finally:
            for parameter, value in buffers:  # by `set_data` compiled optimizers would lose a parameter
                if parameter.asnumpy().tobytes() != value.tobytes():
                    ops.assign(parameter, ms.Tensor(value, parameter.dtype))
            if before is not None:
                before.restore()


@contextlib.contextmanager
def _uncompiled() -> Generator[None, None, None]:
    """Run compiled functions uncompiled in this block, by MindSpore's own switch for debugging."""
    before = os.environ.get("MS_JIT")
    os.environ["MS_JIT"] = "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("MS_JIT", None)
        else:
            os.environ["MS_JIT"] = before


@contextlib.contextmanager
def _cleared_on_error() -> Generator[None, None, None]:
    """Clear MindSpore's half-made graph of gradients if a forward raises: the next one would fail."""
    try:
        yield
    except Exception:
        _pynative_executor.clear_res()
        raise


def _arguments(call: GradCall) -> tuple[Any, ...]:
    return call.args[:-1] if getattr(call.operation, "sens_param", False) else call.args


def _ones_like(call: GradCall) -> Any:
    if call.loss is None:
        raise ReplayImpossible("what backward started from is not known")
    return ops.ones_like(call.loss)


def _scaled(seed: Any, by: float) -> Any:
    if isinstance(seed, (tuple, list)):
        return type(seed)(_scaled(each, by) for each in seed)
    return seed if by == 1.0 else seed * ms.Tensor(by, seed.dtype)


def _fresh(value: Any, *, rows: tuple[int, Sequence[int]] | None, changed: Mapping[int, Any]) -> Any:
    """Return another tensor on the same memory: the dispatch mode does not show operators on what was made outside."""
    if isinstance(value, ms.Tensor) and not isinstance(value, ms.Parameter):
        value = changed.get(id(value), value)
        if rows is not None and value.shape and value.shape[0] == rows[0]:
            return ms.Tensor(value.asnumpy()[list(rows[1])], value.dtype)
        return ms.Tensor(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_fresh(each, rows=rows, changed=changed) for each in value)
    if isinstance(value, dict):
        return {key: _fresh(each, rows=rows, changed=changed) for key, each in value.items()}
    return value


def kept(cells: Iterable[Any], function: Any) -> contextlib.AbstractContextManager[list[Any]]:
    """Let the function, which calls these cells, be called in this block; after it all is as it was."""
    return python_state.kept(_MINDSPORE, cells, _functions(function))


def why_not(cells: Iterable[Any], function: Any) -> str:
    """Return what they hold that cannot be put back, in words; "" if nothing."""
    return python_state.why_not(_MINDSPORE, cells, _functions(function))


def _functions(function: Any) -> list[Any]:
    """Return the user's functions: the given one may be MindSpore's, around the user's."""
    found = [function, *mentioned_through(function)]
    return [each for each in found if isinstance(each, (FunctionType, MethodType)) and not is_library(each)]


def _copied(tensor: Any) -> Undo:
    before = tensor.asnumpy().copy()

    def undo() -> None:
        if tensor.asnumpy().tobytes() != before.tobytes():
            tensor.assign_value(ms.Tensor(before, tensor.dtype))

    return undo


def _of_generator(value: Any) -> Undo | None:
    if not isinstance(value, ms.Generator):
        return None
    state = value.get_state()
    return lambda: value.set_state(state)


_MINDSPORE = Kind(
    own=frozenset(vars(nn.Cell())),
    forward="construct",
    hooks=("_lazy_forward_hook", "_lazy_forward_pre_hook", "_lazy_backward_hook", "_lazy_backward_pre_hook"),
    left_alone=(nn.Cell, ms.Parameter),
    tensor=ms.Tensor,
    constants=CONSTANTS | {type(ms.float32), type(ms.int32), type(ms.bool_)},
    copied=_copied,
    generator=_of_generator,
)


# `nn.Dropout` and `ops.dropout` are one operator whose kernel counts its calls; MindSpore can neither read that count
# nor put it back. In a replay values are dropped by a mask of ours instead: as many, but not the same ones.
class OwnDraws(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Draw dropout and noise from a generator of its own. Entered around a replay, outside other dispatch modes.

    Attributes:
        seen: whether the replay drew something else than the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self._random = np.random.default_rng(_SEED)

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place; those that draw get numbers from here."""
        if func.name in _OF_SHAPE and (shape := _shape(args)) is not None:
            self.seen = True
            return ms.Tensor(self._random.standard_normal(shape).astype(np.float32))
        if func.name not in _DROPOUT:
            return func(*args)
        x, keep = _operands(args)
        if x is None:
            return func(*args)
        self.seen = self.seen or keep < 1.0
        shape = x.shape if func.name == "Dropout" else (*x.shape[:2], *(1,) * (x.ndim - 2))  # whole channels
        mask = ms.Tensor((self._random.random(shape) < keep).astype(np.float32) / keep).astype(x.dtype)
        return x * mask, mask


def _operands(args: Any) -> tuple[Any, float]:
    """Return (input, rate of what is kept) of an operator that is called as (operator, name, operands)."""
    operator = args[0] if args else None
    given = args[2] if len(args) > 2 and isinstance(args[2], tuple) else args
    x = next((each for each in given if isinstance(each, ms.Tensor)), None)
    keep: Any = getattr(operator, "keep_prob", None)
    keep = next((each for each in given if isinstance(each, float)), 1.0) if keep is None else keep
    return x, float(keep)


def _shape(args: Any) -> tuple[int, ...] | None:
    """Return the shape that is the only operand of an operator, given as numbers or a tensor; None if it is none."""
    given = args[2] if len(args) > 2 and isinstance(args[2], tuple) else args
    shape = given[0] if len(given) == 1 else given
    if isinstance(shape, ms.Tensor):
        shape = tuple(int(each) for each in shape.asnumpy().reshape(-1))
    is_shape = isinstance(shape, tuple) and all(isinstance(each, int) for each in shape)
    return shape if is_shape else None


@contextlib.contextmanager
def unscaled() -> Generator[None, None, None]:
    """Let `scaler.scale(loss)` return the loss as it is, within this block."""
    held: list[tuple[type, Any]] = []
    try:
        for kind in _below(amp.LossScaler):
            if "scale" in vars(kind):
                held.append((kind, vars(kind)["scale"]))
                kind.scale = _as_it_is  # type: ignore[attr-defined]
        yield
    finally:
        for kind, scale in held:
            kind.scale = scale  # type: ignore[attr-defined]


def _as_it_is(scaler: Any, inputs: Any) -> Any:
    return inputs


def _below(kind: Any) -> list[Any]:
    return [each for sub in kind.__subclasses__() for each in (sub, *_below(sub))]
