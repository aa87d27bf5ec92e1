"""The tape of one step: what was called with which inputs, so that a replay can do the same again.

Two kinds of events: a call of an outermost module, and an operation in the user's own code between such a call and
`backward` (the loss code). Values that earlier events made are kept as slot numbers, not as tensors: only what came
from outside (the batch, constants) is referenced. So a healthy step pins its batch and nothing else.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from hypocenter.tap.handed_in import Held
from hypocenter.tap.state import Ambient, RngState
from hypocenter.tap.tree import replace_tensors, tensors

_PLAIN = frozenset({int, float, bool, str, type(None), slice, type(Ellipsis)})
MAX_EVENTS = 20_000  # a program that never updates (inference with grad on) must not grow without bound


class _Placeholders:
    """Empty tensors that stand in a recorded argument for the n-th tensor that an earlier event made.

    They are tensors so that `replace_tensors` finds them again in any structure; the pool is shared by all tapes.
    """

    def __init__(self) -> None:
        self._pool: list[torch.Tensor] = []
        self._number: dict[int, int] = {}

    def get(self, number: int) -> torch.Tensor:
        while len(self._pool) <= number:
            self._number[id(placeholder := torch.empty(0, device="cpu"))] = len(self._pool)
            self._pool.append(placeholder)
        return self._pool[number]

    def number(self, tensor: torch.Tensor) -> int | None:
        return self._number.get(id(tensor))


PLACEHOLDERS = _Placeholders()


@dataclass(slots=True)
class External:
    """A tensor from outside the tape (an alias of it, or the parameter itself), with the version it had when used.

    Aliases share storage and version counter: a version that has moved on means an input mutated in place.
    """

    tensor: torch.Tensor
    version: int


@dataclass(slots=True, kw_only=True)
class Event:
    """One call. `args` and `kwargs` hold placeholders and aliases in place of tensors."""

    function: Callable[..., Any]
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    ambient: Ambient
    rng: RngState | None = None
    training: bool | None = None  # of an outermost module
    buffers: list[tuple[torch.nn.Module, str, torch.Tensor]] = field(
        default_factory=list
    )  # mutated ones, before the call
    handed: list[Held] = field(default_factory=list)  # inputs that were put into modules before the call
    code: CodeType | None = None  # where the user's code called it
    line: int = 0
    slots: list[int] = field(default_factory=list)  # numbers of the tensors it returned, in tree order
    needs: tuple[int, ...] = ()  # slots among its arguments
    externals: list[External] = field(default_factory=list)

    @property
    def module(self) -> torch.nn.Module | None:
        """The outermost module that was called, or None for an operation in loss code."""
        return self.function if isinstance(self.function, torch.nn.Module) else None


@dataclass(slots=True, kw_only=True)
class Microbatch:
    """What one `backward` consumed: the slots it started from, and with which gradients."""

    number: int
    batch: int
    roots: list[int | None]
    values: list[torch.Tensor]  # detached; scalars only, to check the loss
    seeds: list[torch.Tensor | None]
    n_events: int  # events on the tape when backward was called
    why_not: str = ""  # why it cannot be replayed


class Tape:
    """The events of one step, from the end of the previous update to the next."""

    def __init__(self, keep_bytes: int) -> None:
        self.events: list[Event] = []
        self.microbatches: list[Microbatch] = []
        self.scalars: list[tuple[int, torch.Tensor]] = []  # (slot, value) of 0-d results since the last backward
        self.broken = ""  # why what was recorded is not complete
        self._keep_bytes = keep_bytes
        self._aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id -> original, alias
        self._kept_bytes = 0
        self._is_full = False
        self._n_slots = 0
        self._slot_of: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._event_of: dict[int, int] = {}

    def slot(self, tensor: torch.Tensor) -> int | None:
        """The number of the slot that holds exactly this tensor object, if the tape made it."""
        entry = self._slot_of.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def record(self, event: Event, args: Any, kwargs: Any, result: Any) -> None:
        """Add a finished call: arguments become slots and externals, results become new slots."""
        if self._is_full:
            return
        needs: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            number = self.slot(tensor)
            if number is not None:
                needs.append(number)
                return PLACEHOLDERS.get(number)
            alias = self._alias(tensor, event)
            event.externals.append(External(alias, version_of(tensor)))
            return alias

        event.args = _kept(args, keep)
        event.kwargs = replace_tensors(kwargs, keep) if kwargs else {}
        event.needs = tuple(needs)
        for tensor in (result,) if isinstance(result, torch.Tensor) else [t for _, t in tensors(result)]:
            self._slot_of[id(tensor)] = (weakref.ref(tensor), self._n_slots)
            self._event_of[self._n_slots] = len(self.events)
            event.slots.append(self._n_slots)
            if tensor.dim() == 0 and tensor.requires_grad and len(self.scalars) < 64:
                self.scalars.append((self._n_slots, tensor.detach()))
            self._n_slots += 1
        self.events.append(event)
        if len(self.events) > MAX_EVENTS:
            self._fill(f"more than {MAX_EVENTS:,} calls without an update")
        elif self._kept_bytes > self._keep_bytes:
            self._fill(f"the inputs of this step are larger than keep_mb ({self._keep_bytes >> 20} MiB)")

    def _fill(self, why: str) -> None:
        """Let go of what is kept; record nothing more in this step."""
        self._is_full, self.broken = True, why
        for kept in (self.events, self.scalars, self._aliases, self._slot_of, self._event_of):
            kept.clear()
        for microbatch in self.microbatches:
            microbatch.why_not = microbatch.why_not or why

    def _alias(self, tensor: torch.Tensor, event: Event) -> torch.Tensor:
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        if tensor.requires_grad and not tensor.is_leaf and event.ambient.grad:
            where = f"{event.code.co_filename}:{event.line}" if event.code else "a module call"
            self.broken = self.broken or (
                f"an input at {where} was computed by code that a replay cannot repeat "
                "(before the model was called, in a custom autograd function, or in a compiled function)"
            )
        known = self._aliases.get(id(tensor))
        if known is not None:
            return known[1]
        self._kept_bytes += tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
        with torch.enable_grad():
            alias = tensor.detach()
            if tensor.requires_grad:
                alias.requires_grad_()
        self._aliases[id(tensor)] = (tensor, alias)
        return alias

    def close_microbatch(
        self, number: int, batch: int, roots: list[torch.Tensor], seeds: list[torch.Tensor | None]
    ) -> Microbatch:
        """`backward` was called on these roots."""
        slots = [self.slot(root) for root in roots]
        why_not = self.broken
        if not why_not and any(slot is None for slot in slots):
            why_not = (
                "backward was called on a value that no watched module call or loss operation made"
                if self.events
                else "no module was called before backward (a fully compiled step, or a functional model)"
            )
        microbatch = Microbatch(
            number=number,
            batch=batch,
            roots=slots,
            values=[root.detach() for root in roots if root.numel() == 1],
            seeds=seeds,
            n_events=len(self.events),
            why_not=why_not,
        )
        self.microbatches.append(microbatch)
        self.scalars.clear()
        return microbatch

    def close_unused_loss(self, number: int, batch: int) -> None:
        """The program ends: a non-finite scalar that nobody went back from counts as the loss of a micro-batch."""
        for slot, value in self.scalars:
            if not bool(torch.isfinite(value)):
                self.microbatches.append(
                    Microbatch(
                        number=number, batch=batch, roots=[slot], values=[value], seeds=[None],
                        n_events=len(self.events), why_not=self.broken,
                    )
                )  # fmt: skip
                break
        self.scalars.clear()

    def slice(self, microbatch: Microbatch) -> list[tuple[int, Event]]:
        """The events that the roots of a micro-batch depend on, in order, with their positions."""
        wanted = [slot for slot in microbatch.roots if slot is not None]
        needed: set[int] = set()
        while wanted:
            position = self._event_of[wanted.pop()]
            if position not in needed:
                needed.add(position)
                wanted.extend(self.events[position].needs)
        return [(position, self.events[position]) for position in sorted(needed)]

    def mutated(self, events: list[tuple[int, Event]]) -> str:
        """Names the first external input whose content was changed in place since it was used, or ''."""
        for _, event in events:
            for value in event.externals:
                if not isinstance(value.tensor, torch.nn.Parameter) and version_of(value.tensor) != value.version:
                    return f"an input of shape {tuple(value.tensor.shape)} was changed in place after it was used"
        return ""

    def clear(self) -> None:
        """Forget everything: an update has been done."""
        self.__init__(self._keep_bytes)  # type: ignore[misc]


def _kept(args: Any, keep: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`replace_tensors`, faster for what loss code mostly passes: a flat tuple of tensors and numbers."""
    if type(args) is tuple and all(isinstance(a, torch.Tensor) or type(a) in _PLAIN for a in args):
        return tuple(keep(a) if isinstance(a, torch.Tensor) else a for a in args)
    return replace_tensors(args, keep)


def version_of(tensor: torch.Tensor) -> int:
    """The version counter; -1 for inference tensors, which have none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1
