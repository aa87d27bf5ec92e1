"""What a training loop computes itself in one step, with its values: each operation outside of modules.

The tape of the step (`tape.py`) keeps what leads to the loss, and no value of it. This one keeps for the time of one
step, and only where somebody will look, also what has no gradient: noise levels, targets, what is put together for the
model. It is small: beyond a number of operations or of bytes it lets go of all, and nothing can be told. It holds no
graph: a loss that the program lets go of is gone (`tape.py` tells of such).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hypocenter.tap.source import user_frame
from hypocenter.tap.tape import storage_of, version_of
from hypocenter.tap.tree import tensors
from hypocenter.tap.weakly import Ref

MOST_OPERATIONS = 2000
MOST_BYTES = 64 << 20  # of results that are kept alive until the update; a step's own graph mostly holds more
MOST_BYTES_OUTSIDE = 256 << 20  # of what came from outside, which the program, or the step's own tape, mostly holds too
LARGE, MOST_LARGE = 64 << 20, 8  # bytes: such a one stays, as a data set does, and only their number counts

Kind = Literal["outside", "made", "drawn", "entered", "output", "unknown"]
_PLAIN = (Tensor, nn.Parameter)
_DRAWS = frozenset({
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "normal", "bernoulli", "multinomial",
    "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_",
})  # fmt: skip
_DRAWS_WITHIN = frozenset({
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
    "gumbel_softmax", "rrelu", "dropout_", "cauchy_", "geometric_", "randperm",
})  # fmt: skip
_ENTERS = frozenset({"tensor", "as_tensor", "from_numpy", "frombuffer", "asarray"})
_CRITERIA: Mapping[type, str] = {
    nn.MSELoss: "mse_loss", nn.L1Loss: "l1_loss", nn.SmoothL1Loss: "smooth_l1_loss", nn.HuberLoss: "huber_loss",
}  # fmt: skip
"""Modules that are noted as the functions that they stand for: of two tensors, element by element."""
_WRITTEN = -2  # no version: it holds something else now
_gradient: Any = Tensor.grad


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in the arguments of an operation for the value of this number."""

    number: int


@dataclass(slots=True)
class Value:
    """A tensor of the step.

    Attributes:
        kind: where it comes from: "outside" is a loader, or what was there before; "entered" numbers from Python or
            NumPy; "unknown" what cannot be computed again.
        tensor: itself, or where it has a graph its values without that; a copy of it once it was written over.
        version: its version counter, when it was last known to hold this.
        made_by: position of the operation; -1: of none.
    """

    kind: Kind
    tensor: Tensor
    version: int
    made_by: int = -1
    key: int = 0  # id of the tensor itself

    @property
    def is_there(self) -> bool:
        """Whether the tensor holds what it held."""
        return version_of(self.tensor) == self.version


@dataclass(slots=True)
class Operation:
    """One call of a function of torch. `args` and `kwargs` hold a `Slot` in place of each tensor."""

    name: str
    function: Any
    args: Any
    kwargs: Any
    needs: tuple[int, ...]
    makes: tuple[int, ...]
    writes: bool
    code: CodeType | None
    line: int


@dataclass(slots=True)
class ModuleCall:
    """One call of an outermost module: values that it was given, and those that it gave."""

    module: nn.Module
    given: tuple[int, ...]
    gives: tuple[int, ...]


@dataclass(slots=True)
class LoopTape:
    """The operations of one step, until its first backward, in their order.

    Attributes:
        roots: the numbers of the tensors that backward began with.
        is_full: there was too much of it: all was let go.
    """

    values: list[Value] = field(default_factory=list[Value])
    operations: list[Operation] = field(default_factory=list[Operation])
    calls: list[ModuleCall] = field(default_factory=list[ModuleCall])
    roots: tuple[int, ...] = ()
    is_full: bool = False
    is_over: bool = False
    _numbers: dict[int, tuple[weakref.ref[Tensor], int]] = field(
        default_factory=dict[int, tuple[weakref.ref[Tensor], int]]
    )  # by id of the tensor
    _by_storage: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    _storages: set[int] = field(default_factory=set[int])
    _written: int = -1  # what the operation that is under way writes over
    _n_bytes: int = 0
    _n_bytes_outside: int = 0
    _n_large: int = 0

    def before_write(self, target: Any) -> None:
        """Keep what a tensor that was made in this step holds: the operation that comes writes over it."""
        if self.is_full or self.is_over or not isinstance(target, Tensor):
            return
        of_target = self._number(target)
        for number in self._by_storage.pop(storage_of(target), ()):
            value = self.values[number]
            if self._numbers.get(value.key, (None, -1))[1] == number:
                del self._numbers[value.key]  # what it, or a view of it, holds from here on is another value
            if value.kind == "outside":  # an average of weights, for one: it is not followed
                value.version = _WRITTEN
            elif value.is_there:
                if number == of_target:
                    self._written = number
                value.tensor = value.tensor.detach().clone()
                self._n_bytes += value.tensor.untyped_storage().nbytes()
                value.version = version_of(value.tensor)

    def note(
        self, function: Any, name: str, args: Any, kwargs: Any, result: Any, caller: FrameType, *, writes: bool
    ) -> None:
        """Note an operation that has run.

        Args:
            writes: it has changed its first argument, which `before_write` was told of.
        """
        written, self._written = self._written, -1
        if self.is_full or self.is_over or (writes and written < 0):
            return
        results = [args[0]] if writes else _tensors_of(result)
        if not results or getattr(function, "__self__", None) is _gradient:
            return
        needs: list[int] = []

        def slot(value: Any) -> Any:
            if isinstance(value, Tensor):
                number = written if writes and value is args[0] else self._enter(value)
                needs.append(number)
                return Slot(number)
            if type(value) is list or type(value) is tuple:
                return type(value)([slot(each) for each in value])
            return value

        kept_args, kept_kwargs = slot(args), {key: slot(value) for key, value in kwargs.items()}
        if not writes and all(self._number(each) is not None for each in results):
            return  # it gives back what it was given
        if needs and all(isinstance(self.values[number].tensor, nn.Parameter) for number in needs):
            return  # of weights alone: what reads it finds a constant
        is_whole = "out" not in kwargs and name not in _DRAWS_WITHIN and all(type(each) in _PLAIN for each in results)
        kind: Kind = "made" if is_whole else "unknown"
        if is_whole and name in _DRAWS:
            kind = "drawn"
        elif is_whole and name in _ENTERS and not needs:
            kind = "entered"
        position = len(self.operations)
        makes = tuple(self._add(each, kind, position) for each in results)
        frame = user_frame(caller)
        self.operations.append(Operation(
            name=name, function=function, args=kept_args, kwargs=kept_kwargs, needs=tuple(needs), makes=makes,
            writes=writes, code=None if frame is None else frame.f_code, line=0 if frame is None else frame.f_lineno,
        ))  # fmt: skip
        self._fill_if_large()

    def call(self, module: nn.Module, args: Any, kwargs: Any, output: Any, caller: FrameType) -> None:
        """Note the call of an outermost module that has returned."""
        if self.is_full or self.is_over:
            return
        if (criterion := _CRITERIA.get(type(module))) is not None:
            self.note(module.forward, criterion, args, kwargs, output, caller, writes=False)
            return
        given = [tensor for _, tensor in tensors((args, kwargs)) if type(tensor) in _PLAIN]
        gives = [tensor for _, tensor in tensors(output) if type(tensor) in _PLAIN]
        numbers = tuple(self._enter(each) for each in given)
        made = tuple(self._add(each, "output", -1) for each in gives if self._number(each) is None)
        self.calls.append(ModuleCall(module, numbers, made))
        self._fill_if_large()

    def end(self, roots: Sequence[Any]) -> None:
        """Hear that backward begins with these: what comes later is not noted."""
        if not self.is_over and not self.is_full:
            found = (self._number(each) for each in roots)
            self.roots, self.is_over = tuple(number for number in found if number is not None), True

    def _enter(self, tensor: Tensor) -> int:
        """Return the number of a tensor that is read; one that was not met comes from outside."""
        number = self._number(tensor)
        if number is None:
            number = self._add(tensor, "outside" if type(tensor) in _PLAIN else "unknown", -1)
        return number

    def _number(self, tensor: Any) -> int | None:
        """Return the number of exactly this tensor; None if it was not met."""
        of, number = self._numbers.get(id(tensor), (None, -1))
        return number if of is not None and of() is tensor else None  # another one may have got its id

    def _add(self, tensor: Tensor, kind: Kind, position: int) -> int:
        number = len(self.values)
        self._numbers[id(tensor)] = Ref(tensor), number
        self.values.append(Value(kind, _without_graph(tensor), version_of(tensor), position, id(tensor)))
        self._by_storage.setdefault(storage_of(tensor), []).append(number)
        if kind == "outside":
            n_bytes = 0 if isinstance(tensor, nn.Parameter) else tensor.numel() * tensor.element_size()
            self._n_large += n_bytes > LARGE
            self._n_bytes_outside += n_bytes if n_bytes <= LARGE else 0
        else:
            self._count(tensor)
        return number

    def _count(self, tensor: Tensor) -> None:
        key = storage_of(tensor)
        if key and key not in self._storages:
            self._storages.add(key)
            self._n_bytes += tensor.untyped_storage().nbytes()

    def _fill_if_large(self) -> None:
        if (
            self._n_bytes > MOST_BYTES
            or self._n_bytes_outside > MOST_BYTES_OUTSIDE
            or self._n_large > MOST_LARGE
            or len(self.operations) + len(self.calls) > MOST_OPERATIONS
        ):
            self.give_up()

    def give_up(self) -> None:
        """Let go of all: it is too much, or not all was seen."""
        self.is_full = True
        for kept in (self.values, self.operations, self.calls, self._numbers, self._by_storage, self._storages):
            kept.clear()


def _without_graph(tensor: Tensor) -> Tensor:
    """Return the tensor, or what shares its memory and its version counter without its graph."""
    if tensor.grad_fn is None or type(tensor) not in _PLAIN:
        return tensor
    with torch._C.DisableTorchFunction():
        return tensor.detach()


def _tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [each for each in result if isinstance(each, Tensor)] if isinstance(result, (list, tuple)) else []
