"""A digest of the bits that every operator reads and writes, from the import of torch on, and who wrote what it reads.

Data flow is followed by storage. Views are no events. Memory that `torch.empty` gave and nobody has written is not
looked at: its bits mean nothing. What a collective has under way is not looked at either.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.opbits import Event, Place, Read, Write
from hypocenter.tap import quiet
from hypocenter.tap.collective_ops import is_collective, is_wrapped, operands, result_of
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.dispatch import Mode, declared, is_mutable, is_random, is_view, name_of
from hypocenter.tap.host_digest import host_digest
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.source import is_library, source_of
from hypocenter.tap.storages import UNDEFINED, Storages

T = TypeVar("T")
_PARTLY = frozenset({"fsdp"})  # its operators give whole buffers of which they have written a part
_SAME_VALUES = frozenset({"lift_fresh", "detach", "alias", "lift", "set_"})
_OTHERS = frozenset({"prim", "profiler"})
_LOADER_FILES = ("dataloader.py", "sampler.py", "worker.py", "fetch.py", "_utils.py")
_LOADER = "/torch/utils/data/"
_LONGEST = 120  # characters of arguments
WAITING = 256  # events that are handed over at once


@dataclass(slots=True, kw_only=True)
class _Begun:
    reads: list[Read]
    written: list[torch.Tensor]
    generator: torch.Generator | None
    state: int | None


class BitsTap(Mode):
    """A mode that notes what every operator reads and writes.

    Args:
        context: follows modules and autograd nodes.
        moment: (phase outside of modules and backward, step, micro-batch) now.
        emit: takes places and events in order; a place comes before the events that name it.
        fail: told why nothing more is looked at.
    """

    def __init__(
        self,
        context: OpContext,
        moment: Callable[[], tuple[str, int, int]],
        emit: Callable[[list[Place | Event]], None],
        fail: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.context, self.storages = context, Storages()
        self.history: dict[int, list[int]] | None = {}  # storage -> events that wrote it, until parameters have names
        self._moment, self._emit, self._fail = moment, emit, fail
        self.is_off = False
        self._n = 0
        self._places: dict[Place, int] = {}
        self._threads: dict[int, int] = {}
        self._out: list[Place | Event] = []
        self.waiting = WAITING
        self._is_loading = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: a compiled function counts as one thing, and nothing of ours may reach its tracing."""
        return True

    def forked(self) -> None:
        """Drop what waits, in a forked child: it is the parent's."""
        self._n, self._out = 0, []
        self._places.clear()
        self._threads.clear()

    def flush(self) -> None:
        """Hand over the events that wait."""
        out, self._out = self._out, []
        if out:
            self._emit(out)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_wrapped(types):
            return NotImplemented  # we want what the wrapper does inside
        base = func.__name__.partition(".")[0]
        if self.is_off or quiet.is_on() or func.namespace in _OTHERS or is_view(func) or base in _SAME_VALUES:
            return func(*args, **kwargs)
        begun = self._guarded(lambda: self._begun(func, args, kwargs))
        out = func(*args, **kwargs)
        if begun is not None:
            self._guarded(lambda: self._ended(func, base, args, kwargs, out, begun))
        return out

    def _guarded(self, look: Callable[[], T]) -> T | None:
        """Run our code so that its errors stop only us: the operator runs all the same, and no others are noted."""
        try:
            with _no_modes():
                return look()
        except Exception as error:
            self.is_off = True
            self._fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            return None

    def _begun(self, func: Any, args: Any, kwargs: Any) -> _Begun:
        """Return what is known of an operator before it runs."""
        if is_collective(func):
            read, written = operands(func, args), list[torch.Tensor]()
        else:
            read, written = _flat((args, {k: v for k, v in kwargs.items() if k != "out"})), _written(func, args, kwargs)
        generator = _generator(func, args, kwargs)
        return _Begun(
            reads=self._reads(read, read if func.namespace in _PARTLY else written),
            written=written, generator=generator, state=state_digest(generator),
        )  # fmt: skip

    def _ended(self, func: Any, base: str, args: Any, kwargs: Any, out: Any, begun: _Begun) -> None:
        """Note what an operator has written and drawn."""
        drew = begun.generator is not None and state_digest(begun.generator) != begun.state
        outputs = result_of(func, args, out) if is_collective(func) else (_flat((out,)) or begun.written)
        drawn = (begun.generator, begun.state) if drew else (None, None)
        self._note(func, base, begun.reads, outputs, drawn, plain((args, kwargs)))

    def _reads(self, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> list[Read]:
        only_written = {id(t) for t in written if self.storages.is_unwritten(t)}
        looked_at = [t for t in read if id(t) not in only_written]
        known = [self.storages.read(t) for t in looked_at]
        return [
            Read(writer, digest, undefined, _part(tensor))
            for tensor, (writer, undefined), digest in zip(looked_at, known, digests_of(looked_at), strict=True)
        ]

    def _note(
        self, func: Any, base: str, reads: list[Read], outputs: Sequence[torch.Tensor], drawn: tuple[Any, int | None],
        arguments: str,
    ) -> None:  # fmt: skip
        is_room, is_under_way = base in UNDEFINED or func.namespace in _PARTLY, is_collective(func)
        found = [None] * len(outputs) if is_room or is_under_way else digests_of(outputs)
        event = self.add(
            "op", name_of(func), self._place(name_of(func)), reads=reads,
            writes=[Write(digest, form(t)) for t, digest in zip(outputs, found, strict=True)],
            generator=_generator_name(drawn[0]), state=drawn[1],
            note=str(drawn[0].initial_seed()) if drawn[0] is not None else "", arguments=arguments,
        )  # fmt: skip
        for tensor in outputs:
            self.storages.write(tensor, event, undefined=is_room)
            if self.history is not None:
                self.history.setdefault(self.storages.key_of(tensor), []).append(event)

    def add(self, kind: Any, name: str, place: tuple[Place, str, int, int], **fields: Any) -> int:
        """Append an event and return its number."""
        where, phase, step, microbatch = place
        number = self._places.get(where)
        if number is None:
            number = self._places[where] = len(self._places)
            self._out.append(where)
        thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
        fields["reads"], fields["writes"] = tuple(fields.get("reads", ())), tuple(fields.get("writes", ()))
        n, self._n = self._n, self._n + 1
        self._out.append(Event(n, time.time_ns(), thread, kind, name, phase, step, microbatch, number, **fields))
        if len(self._out) >= self.waiting:
            self.flush()
        return n

    def place_of_caller(self, frame: FrameType | None) -> tuple[Place, str, int, int]:
        """Return the place of something that is no operator: the innermost line of the program."""
        phase, step, microbatch = self._moment()
        caller, via = user_frame_via(frame)
        where = _of_code(caller.f_code, caller.f_lineno) if caller is not None else Place()
        place = Place(self._site(), "", where.file, where.line, where.function, where.text, via)
        return place, "forward" if place.site else self._outside(phase, via), step, microbatch

    def _site(self) -> str:
        return "" if (site := self.context.site) == "loss" else site

    def _outside(self, phase: str, via: str) -> str:
        """Return the phase outside of modules: the set-up is over when a loader gives its first batch."""
        self._is_loading = self._is_loading or bool(via)
        return "data" if self._is_loading and phase == "setup" else phase

    def _place(self, name: str) -> tuple[Place, str, int, int]:
        phase, step, microbatch = self._moment()
        found = self.context.place(name)
        where = _of_code(found.code, found.line) if found.code is not None else Place()
        via = ""
        if found.phase == "backward":
            phase, via = "backward", f"backward of {found.forward_op}" if found.forward_op else ""
        elif found.phase == "forward":
            phase = "forward"
        else:
            via = user_frame_via(sys._getframe(2))[1]
            phase = self._outside(phase, via)
        site = "" if found.site == "loss" else found.site
        return (
            Place(site, found.module, where.file, where.line, where.function, where.text, via), phase, step, microbatch,
        )  # fmt: skip


def _no_modes() -> AbstractContextManager[Any]:
    """Switch all modes off in this context, as no mode is to see what we compute."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def user_frame_via(frame: FrameType | None) -> tuple[FrameType | None, str]:
    """Return the innermost frame of the program, and "loader" if torch's data loader lies between, else ""."""
    via = ""
    while frame is not None and is_library(frame.f_code.co_filename):
        name = frame.f_code.co_filename
        if _LOADER in name and name.endswith(_LOADER_FILES):
            via = "loader"
        frame = frame.f_back
    return frame, via


def digests_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """Return digests as numbers. Small tensors on the host take a few microseconds; those of a device wait for it."""
    found = [host_digest(tensor) if _is_plain(tensor) else None for tensor in tensors]
    rest = [i for i, digest in enumerate(found) if digest is None and not tensors[i].is_nested]
    if rest:
        for i, digest in zip(rest, to_host(digests([tensors[i] for i in rest])), strict=True):
            found[i] = digest
    return found


def state_digest(generator: torch.Generator | None) -> int | None:
    """Return a digest of a generator's state; None where the state cannot be read (while a CUDA graph is captured)."""
    if generator is None:
        return None
    try:
        return zlib.crc32(generator.get_state().numpy().tobytes())
    except (RuntimeError, TypeError):
        return None


def plain(value: Any) -> str:
    """Return numbers, texts and types among arguments as text; a long text ends in its checksum."""
    text = ", ".join(_plain(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... {zlib.crc32(text.encode()):08x}"


def _plain(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            for text in _plain(inner):
                yield f"{key}={text}"
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _plain(inner)
    elif isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device)):
        yield repr(value)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and not tensor.is_nested
    )


def _part(tensor: torch.Tensor) -> int:
    if not _is_plain(tensor):
        return 0
    return hash((tensor.storage_offset(), *tensor.shape, *tensor.stride())) & 0xFFFF_FFFF  # of numbers: not salted


def form(tensor: torch.Tensor) -> str:
    """Describe a tensor: `float32 [8, 16]`."""
    shape = "nested" if tensor.is_nested else list(tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape}"


def _generator(func: Any, args: Any, kwargs: Any) -> torch.Generator | None:
    """Return the generator that an operator may draw from; None if it draws nothing."""
    if not is_random(func):
        return None
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
    if given:
        return given[0]
    device = kwargs.get("device")
    if device is None:
        device = next((t.device for t in _flat((args, kwargs))), torch.device("cpu"))
    return _default(torch.device(device))


def _default(device: torch.device) -> torch.Generator | None:
    if device.type == "cpu":
        return torch.default_generator
    try:
        module: Any = getattr(torch, device.type)
        index: Any = device.index
        return module.default_generators[module.current_device() if index is None else index]
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def _generator_name(generator: torch.Generator | None) -> str:
    if generator is None:
        return ""
    return f"torch {generator.device}" if generator is _default(generator.device) else "torch.Generator"


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    if not is_mutable(func):
        return []
    written: list[torch.Tensor] = []
    for position, argument in enumerate(declared(func)):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += _flat((args[position] if position < len(args) else kwargs.get(argument.name),))
    return written


def _flat(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple, dict)):
            found += _flat(value)
    return found


def _of_code(code: CodeType, line: int) -> Place:
    source = source_of(code.co_filename, line, code.co_name)
    return Place(file=source.file, line=line, function=source.function, text=source.text)
