"""What a model keeps in Python beside parameters and buffers: put back after a replay, which calls `forward` again.

Counters, lists of losses, caches and generators of its own are attributes of modules, variables that hooks close over,
or globals of the user's files. A replay that left them changed would change the training that goes on after it. What
`forward` prints it has printed once; a replay prints nothing.

What a framework's modules and tensors are is told by a `Kind`: hypocenter.replay.torch_state has torch's.

Looked at are plain containers, generators of random numbers, and objects of the user's own classes, a few levels deep.
Objects of libraries (a trainer, a logger) are left alone: other threads may be at work in them.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.tap.source import is_library

DEPTH = 4  # levels below a module or a hook
ENTRIES = 10_000  # of a container: a longer one is data
TENSOR_BYTES = 64 << 20  # of tensors that are attributes, together
_ITERATORS = (type(iter([])), type(iter(())), type(iter(range(0))))  # which can be set back


Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a framework's modules and tensors are handled.

    Attributes:
        own: attributes of every module, which others see to: parameters, buffers, hooks and flags.
        forward: the name of the method that computes.
        hooks: attributes that hold a module's hooks, as dictionaries.
        left_alone: classes of modules and parameters.
        tensor: class of tensors.
        constants: classes of what never changes.
        copied: copies a tensor now; gives what puts that back later, None of a tensor that nobody writes to.
        generator: gives what puts a generator of random numbers back to where it is now; None of what is none.
    """

    own: frozenset[str]
    forward: str
    hooks: tuple[str, ...]
    left_alone: tuple[type, ...]
    tensor: type
    constants: frozenset[type]
    copied: Callable[[Any], Undo | None]
    generator: Callable[[Any], Undo | None]


@contextlib.contextmanager
def kept(
    kind: Kind,
    parts: Iterable[Any],
    functions: Iterable[Any] = (),
    on_leaving: Callable[[], None] = lambda: None,
    *,
    must_be_all: bool = False,
) -> Generator[list[Any], None, None]:
    """Let these be called in this block; after it what they keep in Python is as it was.

    Gives the tensors among it, whose values are put back.

    Args:
        parts: modules, with all that are inside them.
        functions: of the user's.
        on_leaving: called when the block is over and nothing is put back yet.
        must_be_all: not where something is met that cannot be put back.

    Raises:
        ReplayImpossible: something is.
    """
    state = _State(kind)
    state.take(parts, functions)
    if must_be_all and state.lasting:
        raise ReplayImpossible(state.lasting)
    try:
        with _silent():
            yield state.tensors()
        on_leaving()
    finally:
        state.put_back()


def why_not(kind: Kind, parts: Iterable[Any], functions: Iterable[Any] = ()) -> str:
    """Return what these hold that cannot be put back, in words; "" if nothing."""
    state = _State(kind, copies_values=False)
    state.take(parts, functions)
    return state.lasting


class _State:
    """Copies of what is there now.

    Attributes:
        lasting: what was met that cannot be put back, in words.
    """

    def __init__(self, kind: Kind, *, copies_values: bool = True) -> None:
        self.lasting = ""
        self._kind = kind
        self._copies_values = copies_values
        self._passed_by = (*kind.left_alone, type, ModuleType)
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}  # by id, held: no id is given anew
        self._idle: set[type] = set()  # of values that cannot change, or belong to a library
        self._states: dict[type, bool] = {}  # of globals: whether they may be state
        self._n_bytes = 0

    def tensors(self) -> list[Any]:
        """Return the tensors that were copied."""
        return [value for value in self._seen.values() if isinstance(value, self._kind.tensor)]

    def put_back(self) -> None:
        """Restore everything as it was."""
        for undo in reversed(self._undo):
            undo()

    def take(self, parts: Iterable[Any], functions: Iterable[Any]) -> None:
        """Copy what modules, and functions of the user's, hold."""
        for part in parts:
            self._take_module(part)
        for function in functions:
            self._take_function(function, DEPTH)

    def _take_module(self, module: Any) -> None:
        """Copy a module's own attributes, the globals of its code, and what its hooks hold."""
        attributes, name = vars(module), self._kind.forward
        self._take_dict(attributes, DEPTH, left_out=self._kind.own)
        if id(type(module)) not in self._seen:  # a model has many modules of few kinds
            for kind in type(module).__mro__:
                if id(kind) not in self._seen:
                    self._seen[id(kind)] = kind
                    self._take_code(kind.__dict__.get(name))
        if name in attributes:
            self._take_function(attributes[name], DEPTH)
        for name in self._kind.hooks:
            if hooks := attributes.get(name):
                for hook in hooks.values():
                    self._take(hook, DEPTH)

    def _take_code(self, forward: Any) -> None:
        """Copy the globals of a class of modules."""
        self._take_globals(forward)
        if isinstance(forward, FunctionType):
            for name in forward.__code__.co_names:
                self._look_for_lasting(forward.__globals__.get(name))

    def _take(self, value: Any, depth: int) -> None:
        """Copy a value of any kind; what cannot change, or belongs to a library, is passed by."""
        kind = type(value)
        if kind in self._kind.constants or kind in self._idle or depth < 0 or id(value) in self._seen:
            return
        if isinstance(value, self._passed_by):
            if not issubclass(kind, self._kind.tensor):  # which may be a parameter by a mark of its own
                self._idle.add(kind)
            return
        if isinstance(value, (FunctionType, MethodType)):
            self._take_function(value, depth)
        elif isinstance(value, tuple):
            for each in value:  # type: ignore[reportUnknownVariableType]
                if type(each) not in self._kind.constants:  # type: ignore[reportUnknownArgumentType]
                    self._take(each, depth - 1)
        elif type(value) in (dict, list, set, deque) or isinstance(value, (dict, list, deque)):
            self._take_container(value, depth)
        elif (undo := self._of_generator(value) or _of_iterator(value)) is not None:
            self._remember(value, undo)
        elif isinstance(value, (self._kind.tensor, np.ndarray)):
            self._take_values(value)
        elif isinstance(value, (io.IOBase, Iterator)):
            self._look_for_lasting(value)
        elif not _is_of_the_user(kind):
            self._idle.add(kind)
        elif hasattr(value, "__dict__"):
            self._take_dict(vars(value), depth)

    def _look_for_lasting(self, value: Any) -> None:
        if isinstance(value, (io.IOBase, Iterator)) and not isinstance(value, _ITERATORS):
            self.lasting = f"the model uses a {type(value).__name__}, which cannot be put back"  # type: ignore[reportUnknownMemberType]

    def _remember(self, value: Any, undo: Callable[[], None]) -> None:
        self._seen[id(value)] = value
        self._undo.append(undo)

    def _take_container(self, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            self._take_dict(value, depth)  # type: ignore[reportUnknownArgumentType]
            return
        if len(value) > ENTRIES:
            if isinstance(value, list):  # data, or a long log: what is put on at its end is taken off
                n_before = len(value)
                self._remember(value, lambda: value.__delitem__(slice(n_before, None)))
            return
        before = list(value)
        if isinstance(value, list):
            self._remember(value, lambda: _set_list(value, before))
        elif isinstance(value, set):
            self._remember(value, lambda: (value.clear(), value.update(before))[0])
        else:
            self._remember(value, lambda: (value.clear(), value.extend(before))[0])
        for each in before:
            self._take(each, depth - 1)

    def _take_dict(
        self,
        held: dict[Any, Any],
        depth: int,
        left_out: frozenset[str] = frozenset(),
        only: Callable[[Any], bool] | None = None,
    ) -> None:
        if id(held) in self._seen or len(held) > ENTRIES:
            return
        before = {k: v for k, v in held.items() if k not in left_out}
        if only is not None:
            before = {k: v for k, v in before.items() if only(v)}
        self._remember(held, lambda: _set_dict(held, before, left_out, is_whole=only is None))
        constants = self._kind.constants
        for each in before.values():  # most are constant: a call for each of a large model takes its time
            kind = type(each)
            if kind not in constants and not (kind is tuple and constants.issuperset(map(type, each))):
                self._take(each, depth - 1)

    def _take_function(self, function: Any, depth: int) -> None:
        """Copy what a function closes over, what it is bound to, and the globals of its file."""
        if isinstance(function, MethodType):
            self._take(function.__self__, depth - 1)
            function = function.__func__
        if not isinstance(function, FunctionType) or is_installed(function.__code__.co_filename):
            return
        self._take_globals(function)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty
                self._take_cell(cell, cell.cell_contents, depth)

    def _take_cell(self, cell: Any, value: Any, depth: int) -> None:
        if id(cell) in self._seen:
            return
        self._remember(cell, lambda: setattr(cell, "cell_contents", value))
        self._take(value, depth - 1)

    def _take_globals(self, function: Any) -> None:
        """Copy numbers, containers and generators among the globals: what `global` and `append` change."""
        if isinstance(function, FunctionType) and not is_installed(function.__code__.co_filename):
            self._take_dict(function.__globals__, 2, only=self._may_be_state)

    def _take_values(self, value: Any) -> None:
        self._n_bytes += value.nbytes
        if self._n_bytes > TENSOR_BYTES:
            self.lasting = f"its modules keep more than {TENSOR_BYTES >> 20} MiB of tensors beside buffers"
        if self.lasting or not self._copies_values:
            return
        if isinstance(value, self._kind.tensor):
            if (undo := self._kind.copied(value)) is not None:
                self._remember(value, undo)
        else:
            copied = value.copy()
            self._remember(value, lambda: np.copyto(value, copied) if value.flags.writeable else None)

    def _may_be_state(self, value: Any) -> bool:
        kind = type(value)
        if (known := self._states.get(kind)) is None:
            is_plain = value is None or isinstance(value, (int, float, str, dict, list, set, deque, *_ITERATORS))
            known = self._states[kind] = is_plain or self._of_generator(value) is not None
        return known

    def _of_generator(self, value: Any) -> Undo | None:
        return self._kind.generator(value) or _of_generator(value)


CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis)})


def _set_list(held: list[Any], before: list[Any]) -> None:
    if len(held) != len(before) or any(a is not b for a, b in zip(held, before, strict=True)):
        held[:] = before


def _set_dict(held: dict[Any, Any], before: dict[Any, Any], left_out: frozenset[str], *, is_whole: bool) -> None:
    for key, value in before.items():
        if key not in held or held[key] is not value:
            held[key] = value
    if is_whole:
        for key in held.keys() - before.keys() - left_out:
            del held[key]


def _of_generator(value: Any) -> Callable[[], None] | None:
    """Return what puts a generator of random numbers back to where it is now; None if it is none."""
    if isinstance(value, random.Random):
        of_python = value.getstate()
        return lambda: value.setstate(of_python)
    if isinstance(value, np.random.RandomState):
        old = value.get_state()
        return lambda: value.set_state(old)
    if isinstance(value, np.random.Generator):
        new = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", new)
    return None


def _of_iterator(value: Any) -> Callable[[], None] | None:
    """Return what puts an iterator over a sequence back to where it is now; None for others, or one at its end."""
    if not isinstance(value, _ITERATORS):
        return None
    iterator: Any = value
    now = iterator.__reduce__()[2:]
    return (lambda: iterator.__setstate__(now[0])) if now else None


def _is_of_the_user(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and not is_installed(file))


def is_installed(filename: str) -> bool:
    """Return whether this code came with Python or with a package."""
    return is_library(filename) or filename.startswith(_INSTALLED)


_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class _Silent:
    """A stream that takes nothing from one thread, and passes on what the others write."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


@contextlib.contextmanager
def _silent() -> Generator[None, None, None]:
    before, thread = (sys.stdout, sys.stderr), threading.get_ident()
    sys.stdout, sys.stderr = (stream and _Silent(stream, thread) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
