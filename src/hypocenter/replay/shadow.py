"""A step done again with a shadow in float64 behind every value: how much of each result is rounding.

Each operator runs twice, on the values as they are and on their shadows. The shadow of what the program gives (weights,
inputs) is the value itself, and that of a sequence (`arange`) is the one that was asked for; from there on it is what
exact arithmetic would have made, but for the rounding of float64. Where the two go far apart, the digits that the
program computes with mean nothing: positions in bfloat16, a sum too long for its format, a difference of large numbers.
This is shadow execution, as FpDebug (Benz, Hildebrandt and Hack, PLDI 2012) does it for single instructions.

A decision stays the program's: whole numbers, indices, truth values, random draws, and what is rounded to whole numbers
on purpose are taken as they are. Integers are computed once more in int64: one that differs has wrapped around. Whole
numbers that are looked up must come from a format that has their neighbours too: float16 has 2048, and no 2049.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry

from hypocenter import own_time
from hypocenter.tap.dispatch import ReplayMode, is_random, is_view
from hypocenter.tap.gradients import to_host
from hypocenter.tap.op_context import OpContext, OpPlace
from hypocenter.tap.op_tensors import storage_key, tensors_among
from hypocenter.tap.storages import UNDEFINED

MASKED = 1e30  # what is larger in magnitude stands for infinity in a mask; it takes no part in a comparison
FLOPS = 5e9  # of one operator: the result of a larger one counts as given. Many devices are slow in float64
_NOT_YET = object()
_SHORT = (torch.float16, torch.bfloat16, torch.float32)
_STEPS = frozenset({"round", "floor", "ceil", "trunc", "sign", "sgn", "fix", "frac"})
_WHOLE = frozenset({"add", "sub", "rsub", "mul", "sum", "cumsum", "prod", "cumprod", "neg", "pow", "square", "abs"})
_EXACT = frozenset({"arange", "linspace", "logspace", "_to_copy"})  # given no tensor, or whole numbers
_HALF_TO_FLOAT = frozenset({"_softmax", "_log_softmax"})  # their last argument asks for float32 out of float16
_PICKED_BY = frozenset({"embedding", "_embedding_bag", "gather", "index", "index_select", "take"})
_NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)


@dataclass(slots=True)
class Step:
    """One operator: how far its result is from its shadow, and which steps made its operands.

    Attributes:
        error: L2 norm of the difference over that of the shadow. Both norms, as tensors, until the end.
        made_by: numbers of the steps that made its operands.
        before: their errors.
        n: elements of the result.
        is_learned: a parameter, or a view of one, is among its operands.
    """

    op: str
    place: OpPlace
    dtype: str
    error: Any
    made_by: list[int]
    before: list[Any]
    n: int
    is_learned: bool


@dataclass(slots=True)
class Wrapped:
    """An operator on integers whose result, or whose indices, are not what whole numbers give.

    Attributes:
        dtype: of the result, or that indices came through.
        n: elements.
        are_indices: that many of them are beyond those whose neighbours the format has, too.
    """

    op: str
    place: OpPlace
    dtype: str
    n: int
    n_wrong: int
    are_indices: bool = False


@dataclass(slots=True)
class _Shade:
    """Of one storage: all of its elements in float64, flat."""

    alive: StorageWeakRef
    flat: Tensor
    error: Any = None
    made_by: int = -1


class TooDear(Exception):
    """The time or the memory is used up."""


class Shadow(ReplayMode):
    """Keeps a shadow of each storage while it lives.

    Args:
        context: where operators run.
        limit_s: seconds after which no shadow is followed any more.
        limit_bytes: that shadows may take.

    Attributes:
        steps: in the order in which they ran.
        wrapped: integers that did, or were rounded before they are looked up.
        n_of_model: how many steps came before the last use of a parameter in forward.
        is_whole: no limit was reached.
    """

    def __init__(self, context: OpContext, *, limit_s: float, limit_bytes: int) -> None:
        super().__init__()
        self._context = context
        self._until, self._limit_bytes = own_time.now() + limit_s, limit_bytes
        self._shades: dict[int, _Shade] = {}
        self._of_parameters = set[int]()  # storages that views of parameters were taken of
        self._n_bytes = 0
        self.steps: list[Step] = []
        self.wrapped: list[Wrapped] = []
        self._rounded: dict[int, tuple[StorageWeakRef, str, int]] = {}  # by storage of integers: format, how many
        self.n_of_model = 0
        self.is_whole = True

    def restart(self) -> None:
        """The replay begins anew."""
        self._shades.clear()
        self._rounded.clear()
        self.steps, self.wrapped, self._n_bytes, self.n_of_model = [], [], 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_whole or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        given = tensors_among(args, kwargs)
        if is_view(func):
            self._of_parameters |= {storage_key(t) for t in given if isinstance(t, torch.nn.Parameter)}
            return func(*args, **kwargs)
        try:
            out, twin = self._twice(func, args, kwargs, given)
        except TooDear:
            self.is_whole = False
            self._shades.clear()
            return func(*args, **kwargs)
        if twin is not None:
            self._compare(func, given, out, twin)
        self._look_for_rounded(func, given, out)
        if any(isinstance(t, torch.nn.Parameter) for t in given):
            place = self._context.place(str(func))
            if place.phase == "forward" and not place.recompute:  # what backward recomputes comes after the loss
                self.n_of_model = len(self.steps)
        return out

    def of(self, tensor: Tensor) -> Tensor:
        """Its shadow: float64, of the same shape."""
        return self._shade(tensor).flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _twice(self, func: Any, args: Any, kwargs: Any, given: Sequence[Tensor]) -> tuple[Any, Any]:
        """What the operator gives, and what it gives for the shadows; None where nobody can tell."""
        if own_time.now() > self._until:
            raise TooDear
        name = func.overloadpacket.__name__
        is_plain = func.namespace == "aten" and all(type(t) in (Tensor, torch.nn.Parameter) for t in given)
        is_taken = name in UNDEFINED or name.rstrip("_") in _STEPS or is_random(func)
        if not is_plain or is_taken or any(t.is_complex() for t in given):
            return self._alone(func, args, kwargs, given)
        if func.overloadpacket in flop_registry:
            out = func(*args, **kwargs)
            if not flop_registry[func.overloadpacket](*args, **kwargs, out_val=out) <= FLOPS:
                for tensor in tensors_among(out):
                    self._forget(tensor)
                return out, None
        else:
            out = _NOT_YET
        if any(t.dtype in _SHORT for t in given) or (name in _EXACT and kwargs.get("dtype") in _SHORT):
            again = _replaced(args, self.of), {key: _replaced(each, self.of) for key, each in kwargs.items()}
            if name in _HALF_TO_FLOAT:
                again = (*again[0][:-1], False), again[1]
        elif (
            name in _WHOLE and any(t.dtype in _NARROW for t in given) and not any(t.is_floating_point() for t in given)
        ):
            out = func(*args, **kwargs)
            self._look_for_wrap(func, args, kwargs, out)
            return out, None
        else:
            return self._alone(func, args, kwargs, given)
        writes = [t for t in given if t.dtype in _SHORT] if func._schema.is_mutable else []
        out = func(*args, **kwargs) if out is _NOT_YET else out
        if not any(t.dtype in _SHORT for t in tensors_among(out)):
            return out, None
        try:
            return out, func(*again[0], **again[1])
        except (RuntimeError, NotImplementedError, TypeError, IndexError):  # no kernel for float64
            for tensor in (*tensors_among(out), *writes):
                self._forget(tensor)
            return out, None

    def _alone(self, func: Any, args: Any, kwargs: Any, given: Sequence[Tensor]) -> tuple[Any, Any]:
        """Not done again: what it writes counts as given."""
        out = func(*args, **kwargs)
        for tensor in tensors_among(out) + (list(given) if func._schema.is_mutable else []):
            self._forget(tensor)
        return out, None

    def _look_for_wrap(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not isinstance(out, Tensor) or out.dtype not in _NARROW or func._schema.is_mutable:
            return
        wide = func(*_replaced(args, Tensor.long, _NARROW), **kwargs)
        n_wrong = int((wide != out).sum())
        if n_wrong:
            place = self._context.place(str(func))
            self.wrapped.append(Wrapped(str(func), place, _name(out), n=out.numel(), n_wrong=n_wrong))

    def _look_for_rounded(self, func: Any, given: Sequence[Tensor], out: Any) -> None:
        """Note whole numbers that come from a format which has no neighbours of some, and who looks them up."""
        name = func.overloadpacket.__name__
        if name in _PICKED_BY:
            for tensor in given if self._rounded else ():
                alive, dtype, n_wrong = self._rounded.get(storage_key(tensor), (None, "", 0))
                if alive is not None and not alive.expired():
                    place = self._context.place(str(func))
                    self.wrapped.append(Wrapped(str(func), place, dtype, tensor.numel(), n_wrong, are_indices=True))
        elif name == "_to_copy" and given[0].dtype in _SHORT and out.dtype in (torch.int64, torch.int32):
            (values,) = given
            n_beyond = int((values.abs() > 2.0 / torch.finfo(values.dtype).eps).sum())
            if n_beyond and bool((values == values.trunc()).all()):
                self._rounded[storage_key(out)] = StorageWeakRef(out.untyped_storage()), _name(values), n_beyond

    def _compare(self, func: Any, given: Sequence[Tensor], out: Any, twin: Any) -> None:
        before = [(shade.made_by, shade.error) for t in given if (shade := self._known(t)) is not None]
        number = len(self.steps)
        for one, other in zip(tensors_among(out), tensors_among(twin), strict=False):
            if one.dtype not in _SHORT or one.shape != other.shape or not other.is_floating_point():
                if one.is_floating_point():
                    self._forget(one)
                continue
            shade = self._written(one, other)
            shade.error, shade.made_by = _error(one, self.of(one)), number
            if len(self.steps) == number:
                place = self._context.place(str(func))
                made_by, errors = [by for by, _ in before], [each for _, each in before]
                error, n = shade.error, one.numel()
                is_learned = any(
                    storage_key(t) in self._of_parameters or isinstance(t, torch.nn.Parameter) for t in given
                )
                self.steps.append(Step(str(func), place, _name(one), error, made_by, errors, n, is_learned))

    def _written(self, tensor: Tensor, twin: Tensor) -> _Shade:
        """The shadow of a result, in its place in the shadow of its storage."""
        shade = self._known(tensor) or self._new(tensor)
        if twin.untyped_storage()._cdata != shade.flat.untyped_storage()._cdata:
            shade.flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(twin)
        return shade

    def _known(self, tensor: Tensor) -> _Shade | None:
        key = storage_key(tensor)
        shade = self._shades.get(key)
        if shade is not None and (shade.alive.expired() or _elements(tensor) != shade.flat.numel()):
            self._drop(key)
            return None
        return shade

    def _shade(self, tensor: Tensor) -> _Shade:
        return self._known(tensor) or self._new(tensor)

    def _new(self, tensor: Tensor) -> _Shade:
        """Of a storage that nobody has written since we look: as it is."""
        n = _elements(tensor)
        self._n_bytes += 8 * n
        if self._n_bytes > self._limit_bytes:
            self._prune()
        flat = tensor.detach().as_strided((n,), (1,), 0).to(torch.float64)
        shade = self._shades[storage_key(tensor)] = _Shade(StorageWeakRef(tensor.untyped_storage()), flat)
        return shade

    def _prune(self) -> None:
        for key in [key for key, shade in self._shades.items() if shade.alive.expired()]:
            self._drop(key)
        if self._n_bytes > self._limit_bytes:
            raise TooDear

    def _drop(self, key: int) -> None:
        self._n_bytes -= 8 * self._shades.pop(key).flat.numel()

    def _forget(self, tensor: Tensor) -> None:
        if (key := storage_key(tensor)) in self._shades:
            self._drop(key)

    def finish(self) -> None:
        """Bring all errors to the host: one transfer."""
        errors = [each for step in self.steps for each in (step.error, *step.before)]
        norms = {id(norm): norm for each in errors if each is not None for norm in each}
        known = dict(zip(norms, to_host(list(norms.values())), strict=True))
        for step in self.steps:
            step.error, step.before = _over(step.error, known), [_over(each, known) for each in step.before]


_Norms = tuple[Tensor, Tensor]  # of a difference and of a shadow, on their device


def _over(norms: _Norms | None, known: Mapping[int, float]) -> float:
    apart, size = (0.0, 1.0) if norms is None else (known[id(each)] for each in norms)
    return apart / (size + (apart == 0))


def _error(tensor: Tensor, shadow: Tensor) -> _Norms:
    """L2 norms of the difference and of the shadow, of what is in range: scalars."""
    is_in = shadow.abs() < MASKED
    return torch.where(is_in, tensor.detach() - shadow, 0.0).norm(), torch.where(is_in, shadow, 0.0).norm()


def _replaced(value: Any, fn: Any, dtypes: Sequence[torch.dtype] = _SHORT) -> Any:
    """The same arguments with `fn` of each tensor of these formats; short formats asked for become float64."""
    if isinstance(value, Tensor):
        return fn(value) if value.dtype in dtypes else value
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, fn, dtypes) for each in value)
    if isinstance(value, torch.dtype) and value in _SHORT:
        return torch.float64
    return value


def _elements(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
