"""What a training loop computes itself in one step, with its values: each operation outside of modules.

The tape of the step (`tape.py`) keeps what leads to the loss, and no value of it. This one keeps for the time of one
step, and only where somebody will look, also what has no gradient: noise levels, targets, what is put together for the
model. It is small: beyond a number of operations or of bytes it lets go of all, and nothing can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from hypocenter.tap.source import user_frame
from hypocenter.tap.tape import storage_of, version_of
from hypocenter.tap.tree import tensors

MOST_OPERATIONS = 2000
MOST_BYTES = 64 << 20  # of results that are kept alive until the update; a step's own graph mostly holds more
MOST_BYTES_OUTSIDE = 256 << 20  # of what came from outside, which the program, or the step's own tape, mostly holds too
LARGE, MOST_LARGE = 64 << 20, 8  # bytes: such a one stays, as a data set does, and only their number counts

Kind = Literal["outside", "made", "drawn", "entered", "output", "unknown"]
_PLAIN = (Tensor, torch.nn.Parameter)
_DRAWS = frozenset({
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "normal", "bernoulli", "multinomial",
    "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_",
})  # fmt: skip
_DRAWS_WITHIN = frozenset({
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
    "gumbel_softmax", "rrelu", "dropout_", "cauchy_", "geometric_", "randperm",
})  # fmt: skip
_ENTERS = frozenset({"tensor", "as_tensor", "from_numpy", "frombuffer", "asarray"})
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
        tensor: itself; a copy of it once it was written over.
        version: its version counter, when it was last known to hold this.
        made_by: position of the operation; -1: of none.
    """

    kind: Kind
    tensor: Tensor
    version: int
    made_by: int = -1

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

    module: torch.nn.Module
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
    _numbers: dict[int, int] = field(default_factory=dict[int, int])
    _storages: set[int] = field(default_factory=set[int])
    _n_bytes: int = 0
    _n_bytes_outside: int = 0
    _n_large: int = 0

    def number_of(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor; None if it was not met."""
        return self._numbers.get(id(tensor))

    def before_write(self, target: Any) -> None:
        """Keep what a tensor, and views of it, hold: the operation that comes writes over it."""
        if self.is_full or self.is_over or not isinstance(target, Tensor):
            return
        self._enter(target)
        key = storage_of(target)
        for value in self.values:
            if storage_of(value.tensor) == key:
                was_there = value.is_there
                if self._numbers.get(id(value.tensor)) is not None and value.tensor is not target:
                    self._numbers.pop(id(value.tensor))  # a view: what it holds from here on is not followed
                value.tensor = value.tensor.detach().clone()
                self._count(value.tensor)
                value.version = version_of(value.tensor) if was_there else -2

    def note(
        self, function: Any, name: str, args: Any, kwargs: Any, result: Any, caller: FrameType, *, writes: bool
    ) -> None:
        """Note an operation that has run.

        Args:
            writes: it has changed its first argument, which `before_write` was told of.
        """
        if self.is_full or self.is_over:
            return
        results = [args[0]] if writes and args else _tensors_of(result)
        if not results or getattr(function, "__self__", None) is _gradient:
            return
        needs: list[int] = []

        def slot(value: Any) -> Any:
            if isinstance(value, Tensor):
                number = self._enter(value)
                needs.append(number)
                return Slot(number)
            if type(value) in (list, tuple):
                return type(value)([slot(each) for each in value])
            return value

        kept_args, kept_kwargs = slot(args), {key: slot(value) for key, value in kwargs.items()}
        if not writes and all(self.number_of(each) is not None for each in results):
            return  # it gives back what it was given
        can_be_redone = "out" not in kwargs and name not in _DRAWS_WITHIN
        is_whole = can_be_redone and all(type(each) in _PLAIN for each in results)
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

    def call(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note the call of an outermost module that has returned."""
        if self.is_full or self.is_over:
            return
        given = [tensor for _, tensor in tensors((args, kwargs)) if type(tensor) in _PLAIN]
        gives = [tensor for _, tensor in tensors(output) if type(tensor) in _PLAIN]
        numbers = tuple(self._enter(each) for each in given)
        made = tuple(self._add(each, "output", -1) for each in gives if self.number_of(each) is None)
        self.calls.append(ModuleCall(module, numbers, made))
        self._fill_if_large()

    def end(self, roots: Sequence[Any]) -> None:
        """Hear that backward begins with these: what comes later is not noted."""
        if not self.is_over and not self.is_full:
            found = (self.number_of(each) for each in roots if isinstance(each, Tensor))
            self.roots, self.is_over = tuple(number for number in found if number is not None), True

    def _enter(self, tensor: Tensor) -> int:
        """Return the number of a tensor that is read; one that was not met comes from outside."""
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._add(tensor, "outside" if type(tensor) in _PLAIN else "unknown", -1)
        return number

    def _add(self, tensor: Tensor, kind: Kind, position: int) -> int:
        self._numbers[id(tensor)] = number = len(self.values)
        self.values.append(Value(kind, tensor, version_of(tensor), position))
        if kind == "outside":
            n_bytes = 0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel() * tensor.element_size()
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
        n_operations, n_outside = len(self.operations) + len(self.calls), self._n_bytes_outside
        if self._n_bytes <= MOST_BYTES and n_outside <= MOST_BYTES_OUTSIDE and self._n_large <= MOST_LARGE:
            if n_operations <= MOST_OPERATIONS:
                return
        self.is_full = True
        for kept in (self.values, self.operations, self.calls, self._numbers, self._storages):
            kept.clear()


def _tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [each for each in result if isinstance(each, Tensor)] if isinstance(result, (list, tuple)) else []
