"""The tape of one step: what was called with which inputs, so that a replay can do the same again.

Two kinds of events: a call of an outermost module, and an operation in the user's own code, between such a call and
`backward` (the loss code) or on trainable tensors that belong to no module. Values that earlier events made are kept as
slot numbers, not as tensors: only what came from outside (the batch, constants) is referenced. So a healthy step pins
its batch and nothing else.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from hypocenter.tap.handed_in import Held
from hypocenter.tap.kept_arguments import n_bytes
from hypocenter.tap.lent import Lent
from hypocenter.tap.numerics import Numerics, capture_numerics
from hypocenter.tap.state import Ambient, RngState
from hypocenter.tap.tree import replace_tensors, tensors
from hypocenter.tap.weakly import Ref

_PLAIN = frozenset({int, float, bool, str, type(None), slice, type(Ellipsis), torch.dtype, torch.device, torch.Size})
MAX_UNSPENT = 64  # events that outlive an update; who keeps more graphs than that would have us keep their batches
MAX_NUMBERS = 64  # results of one element that are looked at between two backwards: a loss is among them
MAX_MICROBATCHES = 1024  # that no update has come after: the oldest are forgotten
MAX_EVENTS = 20_000  # a program that never updates (inference with grad on) must not grow without bound
_OVERWRITTEN = -2  # no version: a collective has written here, which is not always counted
COPIED_BYTES = 4 << 20  # a tensor from outside that is changed in place is copied before if it is no larger


class _Placeholders:
    """Empty tensors that stand in a recorded argument for the n-th tensor that an earlier event made.

    They are tensors so that `replace_tensors` finds them again in any structure; the pool is shared by all tapes.
    """

    def __init__(self) -> None:
        self.pool: list[torch.Tensor] = []
        self._number: dict[int, int] = {}

    def get(self, number: int) -> torch.Tensor:
        while len(self.pool) <= number:
            self._number[id(placeholder := torch.empty(0, device="cpu"))] = len(self.pool)
            self.pool.append(placeholder)
        return self.pool[number]

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
    seen: torch.Tensor | None = None  # some of its values then, at steps at which somebody compares them
    lost: torch.Tensor | None = None  # its memory, at such steps, where another rank has written: `tensor` is a copy


Left = tuple[weakref.ref[torch.nn.Module], str]
"""A module, and the attribute in which its call has left a tensor: a router's loss, for one."""


@dataclass(slots=True, kw_only=True)
class Event:
    """One call that was recorded. `args` and `kwargs` hold placeholders and aliases in place of tensors."""

    function: Callable[..., Any]
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    ambient: Ambient
    numerics: Numerics | None = field(default_factory=capture_numerics)  # None: it is the same under all
    rng: RngState | None = None
    training: bool | None = None  # of an outermost module
    buffers: Sequence[tuple[torch.nn.Module, str, torch.Tensor]] = ()  # those that it changes, before the call
    parameters: list[torch.nn.Parameter] = field(default_factory=list)  # of an outermost module
    versions: list[int] = field(default_factory=list)  # of these, before the call
    handed: list[Held] = field(default_factory=list)  # inputs that were put into modules before the call
    lent: list[Lent] = field(default_factory=list)  # parameters that modules had for this call only
    code: CodeType | None = None  # where the user's code called it
    line: int = 0
    slots: list[int] = field(default_factory=list)  # numbers of the tensors it returned, in tree order, and of `left`
    left: list[Left] = field(default_factory=list)  # where it has left other tensors that the loss is made of
    needs: tuple[int, ...] = ()  # slots among its arguments
    cut: list[int] = field(default_factory=list)  # of these, where a graph begins: leaves that ask for their gradient
    externals: list[External] = field(default_factory=list)
    was: torch.Tensor | None = None  # among its arguments: a copy of what it changes in place, which came from outside
    why_not: str = ""  # why gradients cannot be taken through it again

    @property
    def module(self) -> torch.nn.Module | None:
        """The outermost module that was called, or None for an operation in loss code."""
        return self.function if isinstance(self.function, torch.nn.Module) else None


_WHY_NOT, _VERSION = map(operator.attrgetter, ("why_not", "_version"))


@dataclass(slots=True, kw_only=True)
class Microbatch:
    """What one `backward` consumed: the slots it started from, and with which gradients."""

    number: int
    batch: int
    roots: list[int | None]
    values: list[torch.Tensor]  # detached; scalars only, to check the loss, or what the program died of
    seeds: list[torch.Tensor | None]
    n_events: int  # events on the tape when backward was called
    numerics: Numerics = field(default_factory=capture_numerics)  # in backward
    why_not: str = ""  # why it cannot be replayed
    is_taken: bool = False  # by `torch.autograd.grad`, and put into `.grad` by the program
    makes_room: bool | None = None  # whether some operator of it gives memory as it is; None: nobody has looked


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that an operation changes in place, and a copy of what it held before, if no event made that."""

    tensor: torch.Tensor
    was: torch.Tensor | None


class Tape:
    """The events of one step, from the end of the previous update to the next."""

    def __init__(self, keep_bytes: int, max_events: int = MAX_EVENTS) -> None:
        self.events: list[Event] = []
        self.microbatches: list[Microbatch] = []
        self.scalars: list[tuple[int, torch.Tensor]] = []  # (slot, value) of 0-d results since the last backward
        self._unused: list[tuple[int, torch.Tensor]] = []  # of these in this step, what no backward began with
        self._looked_at: set[int] = set()  # slots whose numbers the program has read
        self.leaves: dict[int, torch.Tensor] = {}  # trainable ones that events have read outside of modules
        self.broken = ""  # why what was recorded is not complete
        self.look: Callable[[torch.Tensor], torch.Tensor | None] | None = None  # what it gives is kept with externals
        self._keep_bytes, self._max_events = keep_bytes, max_events
        self._aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id -> original, alias
        self._kept_bytes = 0
        self.is_full = False  # nothing more is recorded in this step
        self.n_carried = 0  # events at the front that were made before the last update
        self._n_slots = 0
        self._slot_of: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._event_of: dict[int, int] = {}
        self._with_graph: set[int] = set()  # slots that a backward may start from or go through
        self._spent: set[int] = set()  # positions of events whose graph a backward has used up
        self._numbers: dict[int, torch.Tensor] = {}  # slot -> value, of the first with one element since each backward
        self._of_emptied: set[int] = set()  # slots of what was computed from such a one after its data was taken away
        self._cuts: set[int] = set()  # slots that are leaves for a module, and for all that reads them from then on
        self._writers: dict[int, int] = {}  # storage -> slot of what was last changed in place there
        self._received: set[int] = set()  # slots with a graph whose numbers another rank has changed since

    def slot(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the slot that holds exactly this tensor object; None if the tape has not made it."""
        entry = self._slot_of.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def at_edge(self, edge: GradientEdge) -> torch.Tensor | None:
        """Return the program's tensor that an edge of the graph leads into; None if the tape has not made it."""
        made = (tensor for ref, _ in self._slot_of.values() if (tensor := ref()) is not None)
        return next((t for t in made if t.grad_fn is edge.node and t.output_nr == edge.output_nr), None)

    def before_write(self, tensor: torch.Tensor) -> Written | None:
        """Prepare for a change of `tensor` in place. None: a replay of it would change the user's own values.

        What an earlier event made is changed again in a replay; what came from outside is copied first.
        """
        key = storage_of(tensor)
        readers = [original for original, alias in self._aliases.values() if storage_of(alias) == key]
        if not key or any(original is not tensor for original in readers):
            return None
        if self.slot(tensor) is not None:
            return None if readers else Written(tensor, None)
        is_small = tensor.numel() * tensor.element_size() <= COPIED_BYTES
        if not is_small or tensor.requires_grad:
            return None
        was = tensor.detach().clone()
        if readers:  # what has read it before goes on with the copy
            _, alias = self._aliases.pop(id(tensor))
            alias.data = was
            was = alias
        return Written(tensor, was)

    def look_at(self, tensor: torch.Tensor) -> None:
        """Note that the program reads this tensor's number on the host."""
        if (number := self.slot(tensor)) is not None:
            self._looked_at.add(number)

    def _is_computed(self, slot: int) -> bool:
        """Return whether the slot's value was computed: room for what another rank sends is not."""
        position = self._event_of.get(slot)
        return position is not None and bool(self.events[position].needs or self.events[position].externals)

    def forget(self, tensor: torch.Tensor) -> None:
        """Let a tensor count as one from outside: it was changed by something that no replay does again."""
        self._slot_of.pop(id(tensor), None)

    def before_receipt(self, outputs: Sequence[torch.Tensor]) -> None:
        """Prepare for what other ranks send into these tensors, which no replay does again.

        Who reads them later reads values from outside; who has read them before keeps those of then. A gradient goes
        on through one that has a graph: what is computed from it later cannot be replayed.
        """
        keys = {storage_of(tensor) for tensor in outputs} - {0}
        for tensor in [t for ref, _ in self._slot_of.values() if (t := ref()) is not None and storage_of(t) in keys]:
            if tensor.requires_grad and not tensor.is_leaf:
                self._received.add(self._slot_of[id(tensor)][1])
            else:
                self.forget(tensor)
        numbers = [*self._numbers.values(), *(value for each in self.microbatches for value in each.values)]
        for number in numbers:
            if storage_of(number) in keys:
                number.data = number.clone()
        for original, alias in [pair for pair in self._aliases.values() if storage_of(pair[1]) in keys]:
            del self._aliases[id(original)]
            is_copied = n_bytes(alias) <= COPIED_BYTES
            lost = alias.detach()
            if is_copied:
                alias.data = lost.clone()
            if is_copied and self.look is None:
                continue
            for external in (e for event in self.events for e in event.externals if e.tensor is alias):
                if is_copied:
                    external.lost = lost
                else:
                    external.version = _OVERWRITTEN

    def record(self, event: Event, args: Any, kwargs: Any, result: Any, written: Written | None = None) -> None:
        """Add a finished call: arguments become slots and externals, results become new slots.

        Args:
            written: what it has changed in place.
        """
        if self.is_full:
            return
        needs: list[int] = []
        given: set[int] = set()
        pool = PLACEHOLDERS.pool
        is_of_module = isinstance(event.function, torch.nn.Module)
        is_cut = False  # gradients flow on into what nobody saw being computed
        is_of_emptied = False

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal is_cut, is_of_emptied
            given.add(id(tensor))
            if self._writers and (writer := self._writers.get(storage_of(tensor))) is not None:
                needs.append(writer)
            entry = self._slot_of.get(id(tensor))
            number = entry[1] if entry is not None and entry[0]() is tensor else None
            is_leaf = tensor.requires_grad and tensor.is_leaf
            if number is not None and is_leaf and is_of_module and self._is_computed(number):
                self._cuts.add(number)  # a module's input: computed in this step, then cut off from what computed it
            if number is not None and (not is_leaf or number in self._cuts):
                event.cut += [number] * is_leaf
                needs.append(number)
                if number in self._numbers or number in self._of_emptied:  # others have nothing to lose
                    is_of_emptied = is_of_emptied or self._is_emptied(tensor, number)
                if number in self._received:
                    event.why_not = "it is computed from what another rank sent, and its gradient goes on past that"
                return pool[number] if number < len(pool) else PLACEHOLDERS.get(number)
            if written is not None and tensor is written.tensor and written.was is not None:
                event.was = written.was
                return written.was
            if tensor.requires_grad and not tensor.is_leaf:
                if (number := self._left_behind(tensor)) is not None:
                    needs.append(number)
                    return PLACEHOLDERS.get(number)
                is_cut = True
            alias = self._alias(tensor, is_operand=not is_of_module)
            seen = None if self.look is None else self.look(alias)
            version = -1 if tensor.is_inference() else tensor._version  # `version_of`, for each operation of loss code
            event.externals.append(External(alias, version, seen))
            return alias

        event.args = _kept(args, keep)
        event.kwargs = _kept_by_name(kwargs, keep) if kwargs else {}
        if event.lent:
            event.lent = [each if is_trainable_leaf(each.tensor) else each.of(keep) for each in event.lent]
        event.needs = tuple(needs)
        if event.handed or event.was is not None:
            self._kept_bytes += self._bytes_beside(event)
        if written is not None:
            result = written.tensor
            self._writers[storage_of(result)] = self._n_slots
            for external in (e for earlier in self.events for e in earlier.externals if e.tensor is written.was):
                external.version = version_of(external.tensor)
        for tensor in (result,) if isinstance(result, torch.Tensor) else [t for _, t in tensors(result)]:
            if written is not None or id(tensor) not in given:  # what it was given and gives back was made before
                self._slot_of[id(tensor)] = (Ref(tensor), self._n_slots)
            self._event_of[self._n_slots] = len(self.events)
            event.slots.append(self._n_slots)
            if tensor.requires_grad:
                self._with_graph.add(self._n_slots)
                event.why_not = event.why_not or (_cut_at(event) if is_cut else "")
            if is_of_emptied:
                self._of_emptied.add(self._n_slots)
            elif (
                tensor.requires_grad and len(self.scalars) < MAX_NUMBERS and tensor.numel() == 1
                and (value := _number(tensor)) is not None
            ):  # fmt: skip
                self._numbers[self._n_slots] = value
                if tensor.dim() == 0:
                    self.scalars.append((self._n_slots, value))
            self._n_slots += 1
        self.events.append(event)
        if len(self.events) > self._max_events:
            self._fill(f"more than {self._max_events:,} calls without an update")
        if self._kept_bytes > self._keep_bytes:
            self._fill_if_large()

    def _fill_if_large(self) -> None:
        if not self.is_full and self._kept_bytes > self._keep_bytes:
            self._fill(f"the inputs of this step are larger than keep_mb ({self._keep_bytes >> 20} MiB)")

    def _is_emptied(self, tensor: torch.Tensor, number: int) -> bool:
        """Return whether the tensor's data was taken away since it was made, or it was computed from such a one."""
        if number in self._of_emptied:
            return True
        value = self._numbers.get(number)
        return value is not None and not hasattr(tensor, "to_local") and storage_of(value) != storage_of(tensor)

    def _bytes_beside(self, event: Event) -> int:
        """Return the bytes kept beside arguments: what a pipeline stage has received, copies of what was changed."""
        received = {id(t): t for _, t in tensors([value for _, value in event.handed])}
        beside = [t for key, t in received.items() if key not in self._aliases]
        return sum(map(n_bytes, beside)) + (0 if event.was is None else n_bytes(event.was))

    def _left_behind(self, tensor: torch.Tensor) -> int | None:
        """Return the slot of a tensor that a module has left in an attribute, not returned; None of any other."""
        for position in range(len(self.events) - 1, -1, -1):
            event = self.events[position]
            for owner in event.module.modules() if event.module is not None else ():
                for key, value in vars(owner).items():
                    if value is tensor:
                        event.left.append((Ref(owner), key))
                        event.slots.append(number := self._n_slots)
                        self._n_slots += 1
                        self._event_of[number] = position
                        self._slot_of[id(tensor)] = Ref(tensor), number
                        self._with_graph.add(number)
                        return number
        return None

    def _fill(self, why: str) -> None:
        """Let go of what is kept; record nothing more in this step."""
        self.is_full, self.broken = True, why
        for kept in (self.events, self.scalars, self._unused, self._aliases, self._slot_of, self._event_of):
            kept.clear()
        for kept in (self._writers, self._numbers, self._of_emptied, self._looked_at, self._received):
            kept.clear()
        self._with_graph.clear()
        self._cuts.clear()
        for microbatch in self.microbatches:
            microbatch.why_not = microbatch.why_not or why
            microbatch.seeds = [None] * len(microbatch.seeds)

    def _alias(self, tensor: torch.Tensor, *, is_operand: bool) -> torch.Tensor:
        """Return what is kept of a tensor from outside: itself if it is trained, else an alias.

        Args:
            is_operand: of an operation. What a module is called with is an input, also if it asks for its gradient, as
                what a stage of a pipeline receives does.
        """
        known = self._aliases.get(id(tensor))
        if known is not None:  # one tensor has one stand-in: a gradient may be taken with respect to it
            return known[1]
        is_leaf = (type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)) or (
            is_operand and is_trainable_leaf(tensor)
        )  # what asks for the class of parameters is a call of Python
        if is_leaf or id(tensor) in self.leaves:
            self.leaves.setdefault(id(tensor), tensor)
            return tensor
        self._kept_bytes += n_bytes(tensor)
        alias = tensor.detach()
        if tensor.requires_grad:
            alias.requires_grad_()
        self._aliases[id(tensor)] = (tensor, alias)
        return alias

    def close_microbatch(
        self, number: int, batch: int, given: list[torch.Tensor | GradientEdge], seeds: list[torch.Tensor | None]
    ) -> Microbatch:
        """Make a micro-batch of these roots, as `backward` was called on them, and add it to the step."""
        microbatch = self.microbatch_of(number, batch, given, seeds)
        self.add(microbatch)
        return microbatch

    def add(self, microbatch: Microbatch) -> None:
        """Add a micro-batch to the step: its gradients are added up."""
        self.microbatches.append(microbatch)
        for seed in microbatch.seeds:
            self._kept_bytes += 0 if seed is None else n_bytes(seed)
        if self.is_full:
            microbatch.seeds = [None] * len(microbatch.seeds)
        if self._kept_bytes > self._keep_bytes:
            self._fill_if_large()
        if len(self.microbatches) > MAX_MICROBATCHES:
            del self.microbatches[0]
            if not self.is_full:
                self._fill(f"more than {MAX_MICROBATCHES:,} backward passes without an update")
        if self._looked_at:  # else no loss has been decided on
            self._unused += self._apart_from([slot for slot in microbatch.roots if slot is not None])
        self.scalars.clear()

    def microbatch_of(
        self, number: int, batch: int, given: list[torch.Tensor | GradientEdge], seeds: list[torch.Tensor | None]
    ) -> Microbatch:
        """Return the micro-batch that leads to these roots."""
        slots: list[int | None] = []
        values: list[torch.Tensor] = []
        for at, each in enumerate(given):  # a comprehension is a call, and this runs at each step
            root = self.at_edge(each) if isinstance(each, GradientEdge) else each
            slot = None if root is None else self.slot(root)
            slots.append(slot)
            if (value := self._value(root, slot, seeds[at])) is not None:
                values.append(value)
        why_not = self.why_not(slots)
        if not why_not and None in slots:
            why_not = (
                "backward was called on a value that no watched module call or loss operation made"
                if self.events
                else "nothing that leads to the loss was seen (a fully compiled step, or gradients of torch.func)"
            )
        return Microbatch(
            number=number,
            batch=batch,
            roots=slots,
            values=values,
            seeds=seeds,
            n_events=len(self.events),
            why_not=why_not,
        )

    def _value(self, root: torch.Tensor | None, slot: int | None, seed: torch.Tensor | None) -> torch.Tensor | None:
        """Return the number that a backward begins with; None where it begins with more than one.

        A pipeline empties what a stage has sent away, and the loss with it: then it holds one element of anything.
        """
        if slot is not None and slot in self._numbers:
            return self._numbers[slot]
        if slot is not None and slot in self._of_emptied:
            try:
                return self._number_at(slot)
            except LookupError:
                return None
        is_one = root is not None and root.numel() == 1 and (seed is None or seed.numel() == 1)
        return _number(root) if is_one and root is not None else None

    @torch.no_grad()
    def _number_at(self, slot: int) -> torch.Tensor:
        """Return a number as it was before it was emptied; it is computed again where it is gone.

        Raises:
            LookupError: it cannot be.
        """
        if slot in self._numbers:
            return self._numbers[slot]
        event = self.events[self._event_of[slot]]
        if event.module is not None or event.rng is not None:
            raise LookupError(slot)

        def filled(tensor: torch.Tensor) -> torch.Tensor:
            number = PLACEHOLDERS.number(tensor)
            return tensor if number is None else self._number_at(number)

        result = event.function(*replace_tensors(event.args, filled), **replace_tensors(event.kwargs, filled))
        return result[event.slots.index(slot)] if isinstance(result, (tuple, list)) else result

    def _apart_from(self, roots: Sequence[int]) -> list[tuple[int, torch.Tensor]]:
        """Return scalars that share nothing with what backward begins with: neither parts of it nor made from it."""
        used = {slot for event in self.events if not self._with_graph.isdisjoint(event.slots) for slot in event.needs}
        others = [(slot, value) for slot, value in self.scalars if slot not in roots and slot not in used]
        if not others:
            return []
        known = {position for position, _ in self.making(*roots)}
        return [
            (slot, value) for slot, value in others
            if known.isdisjoint(position for position, _ in self.making(slot))
        ]  # fmt: skip

    def lost(self, number: int, batch: int) -> list[Microbatch]:
        """Return losses of this step that the program has looked at and that no backward began with, or can begin with.

        Nothing holds their graphs any more. What nobody looks at is no decision: a pipeline that tries out the shapes
        of its stages computes losses of whatever lies in memory.
        """
        if not self._unused:
            return []
        alive = {slot for ref, slot in self._slot_of.values() if ref() is not None}
        used = {slot for each in self.microbatches for slot in each.roots}
        used |= {slot for event in self.events if not self._with_graph.isdisjoint(event.slots) for slot in event.needs}
        looked_at, waiting = set[int](), [*self._looked_at]
        while waiting:  # at `isnan(loss)` is at the loss
            slot = waiting.pop()
            if slot not in looked_at and slot not in self._with_graph:
                waiting.extend(self.events[self._event_of[slot]].needs)
            looked_at.add(slot)
        return [
            Microbatch(
                number=number, batch=batch, roots=[slot], values=[value], seeds=[None], n_events=len(self.events),
                why_not=self.why_not([slot]),
            )
            for slot, value in self._unused if slot in looked_at and slot not in alive and slot not in used
        ]  # fmt: skip

    def close_unused_loss(self, number: int, batch: int) -> None:
        """Take a non-finite scalar that no backward began with for the loss of a micro-batch: the program ends."""
        for slot, value in self.scalars:
            if not bool(torch.isfinite(value)):
                self.microbatches.append(
                    Microbatch(
                        number=number, batch=batch, roots=[slot], values=[value], seeds=[None],
                        n_events=len(self.events), why_not=self.why_not([slot]),
                    )
                )  # fmt: skip
                break
        self.scalars.clear()

    def close_at(self, given: Sequence[torch.Tensor], number: int, batch: int) -> None:
        """Make a micro-batch of what made the first of these non-finite values, from which the program has died."""
        keys = [storage_of(tensor) for tensor in given]
        made = {storage_of(tensor): (n, tensor) for ref, n in self._slot_of.values() if (tensor := ref()) is not None}
        found = next((made[key] for key in keys if key in made), None)
        if found is not None:
            slot, value = found[0], found[1].detach()
            self.microbatches.append(
                Microbatch(
                    number=number, batch=batch, roots=[slot], values=[value], seeds=[torch.ones_like(value)],
                    n_events=len(self.events), why_not=self.why_not([slot]),
                )
            )  # fmt: skip

    def why_not(self, roots: list[int | None]) -> str:
        """Say why what these slots depend on cannot be replayed; "" if it can."""
        if self.broken or not any(map(_WHY_NOT, self.events)):
            return self.broken
        made = self.making(*(slot for slot in roots if slot is not None))
        return next((event.why_not for _, event in made if event.why_not), "")

    def slice(self, microbatch: Microbatch) -> list[tuple[int, Event]]:
        """Return (position, event) in order for the events that the roots of a micro-batch depend on."""
        wanted: list[int] = []
        for slot in microbatch.roots:
            if slot is not None:
                wanted.append(slot)  # noqa: PERF401 (a comprehension is a call)
        return self.making(*wanted)

    def maker(self, slot: int) -> Event | None:
        """Return the event that has made what is in a slot; None without one."""
        position = self._event_of.get(slot)
        return None if position is None else self.events[position]

    @property
    def with_graph(self) -> Set[int]:
        """The slots that a backward may start from or go through."""
        return self._with_graph

    def living(self) -> list[tuple[int, torch.Tensor]]:
        """Return (slot, tensor) for tensors that somebody still holds."""
        return [(slot, tensor) for ref, slot in self._slot_of.values() if (tensor := ref()) is not None]

    def originals(self, kept: torch.Tensor) -> list[torch.Tensor]:
        """Return the user's tensors that share their memory with what is kept here."""
        key = storage_of(kept)
        return [tensor for tensor, alias in self._aliases.values() if storage_of(alias) == key]

    def making(self, *slots: int) -> list[tuple[int, Event]]:
        """Return (position, event) in order for the events that these slots depend on."""
        wanted = list(slots)
        needed: set[int] = set()
        while wanted:
            position = self._event_of[wanted.pop()]
            if position not in needed:
                needed.add(position)
                wanted.extend(self.events[position].needs)
        in_order = sorted(needed)
        return list(zip(in_order, map(self.events.__getitem__, in_order), strict=True))

    def mutated(self, events: list[tuple[int, Event]]) -> str:
        """Describe the first input or parameter that was changed in place since it was used; "" if none was.

        What is computed again would start from other values than the run did, and could only accuse the wrong one.
        """
        for _, event in events:
            parameters = zip(event.parameters, event.versions, strict=True)
            for tensor, version in (*((e.tensor, e.version) for e in event.externals), *parameters):
                if version_of(tensor) != version:
                    what = "a parameter" if isinstance(tensor, torch.nn.Parameter) else "an input"
                    return f"{what} of shape {tuple(tensor.shape)} was changed in place after it was used"
        return ""

    def spend(self, microbatch: Microbatch) -> None:
        """Note that a backward has freed the graph that it went through: no other can start from there."""
        wanted: list[int] = []
        for slot in microbatch.roots:
            if slot in self._with_graph:
                wanted.append(slot)  # noqa: PERF401 (a comprehension is a call)
        while wanted:
            position = self._event_of[wanted.pop()]
            if position not in self._spent:
                self._spent.add(position)
                wanted += self._with_graph.intersection(self.events[position].needs)

    def clear(self) -> None:
        """Forget everything but what a later backward can still go through: an update has been done.

        That is how a generator's output, made before the discriminator's update, comes into the generator's loss.
        """
        if not (self._n_slots or self.events or self.microbatches or self._aliases or self.leaves or self.broken):
            self._looked_at.clear()
            return  # nothing was noted
        kept, slot_of, aliases, look = self._unspent(), self._slot_of, self._aliases, self.look
        self.__init__(self._keep_bytes, self._max_events)  # type: ignore[misc]
        self.look = look
        if not kept:
            return
        self.n_carried = len(kept)
        numbers: dict[int, int] = {}
        alive = {number: ref for ref, number in slot_of.values() if ref() is not None}
        used = {id(value.tensor) for event in kept for value in event.externals}
        for event in kept:

            def renumbered(tensor: torch.Tensor) -> torch.Tensor:
                number = PLACEHOLDERS.number(tensor)
                return tensor if number is None else PLACEHOLDERS.get(numbers[number])

            event.args, event.kwargs = replace_tensors((event.args, event.kwargs), renumbered)
            event.lent = [each.of(renumbered) for each in event.lent]
            event.needs = tuple(numbers[number] for number in event.needs)
            for number in event.slots:
                numbers[number] = self._n_slots
                self._event_of[self._n_slots] = len(self.events)
                if (ref := alive.get(number)) is not None and (tensor := ref()) is not None:
                    self._slot_of[id(tensor)] = (ref, self._n_slots)
                    if tensor.requires_grad:
                        self._with_graph.add(self._n_slots)
                self._n_slots += 1
            event.slots = [numbers[number] for number in event.slots]
            event.cut = [numbers[number] for number in event.cut if number in numbers]
            self.events.append(event)
        self._aliases = {key: pair for key, pair in aliases.items() if id(pair[1]) in used}
        self._kept_bytes = sum(n_bytes(alias) for _, alias in self._aliases.values())
        self._kept_bytes += sum(map(self._bytes_beside, self.events))

    def _unspent(self) -> list[Event]:
        """Return the events whose results somebody still holds with their graph, and what these were made from."""
        if self.broken or not self.events:
            return []
        alive: list[int] = []
        for ref, number in self._slot_of.values():
            if number in self._with_graph and self._event_of[number] not in self._spent and ref() is not None:
                alive.append(number)
        if not alive:
            return []
        needed = self.making(*alive)
        return [event for _, event in needed] if len(needed) <= MAX_UNSPENT else []


def _number(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a one-element tensor, as a copy where compiled code may write to its memory again.

    Of a DTensor the value here, where all ranks have the same; None where each has a part, for nobody is asked.
    """
    held = tensor.detach()
    if hasattr(held, "to_local"):
        return held.to_local() if all(each.is_replicate() for each in held.placements) else None  # type: ignore[operator]
    return held.clone() if type(tensor.grad_fn).__name__ == "CompiledFunctionBackward" else held


def _cut_at(event: Event) -> str:
    where = f"{event.code.co_filename}:{event.line}" if event.code else "a module call"
    return (
        f"an input at {where} was computed by code that a replay cannot repeat "
        "(before the model was called, in a custom autograd function, or in a compiled function)"
    )


def is_trainable_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a gradient ends here: a parameter, of a module or not."""
    return tensor.requires_grad and tensor.is_leaf


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that two tensors share if they share memory; 0: the tensor has none."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


def _kept(args: Any, keep: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Do what `replace_tensors` does, faster for what loss code mostly passes: a flat tuple of tensors and numbers."""
    if type(args) is not tuple:
        return replace_tensors(args, keep)
    for each in args:
        if type(each) not in _PLAIN and not isinstance(each, torch.Tensor):
            return replace_tensors(args, keep)
    kept: list[Any] = []
    for each in args:
        kept.append(each if type(each) in _PLAIN else keep(each))  # noqa: PERF401 (a comprehension is a call)
    return tuple(kept)


def _kept_by_name(kwargs: dict[str, Any], keep: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Do the same with arguments that have a name."""
    for each in kwargs.values():
        if type(each) not in _PLAIN and not isinstance(each, torch.Tensor):
            return replace_tensors(kwargs, keep)
    kept: dict[str, Any] = {}
    for name, each in kwargs.items():
        kept[name] = each if type(each) in _PLAIN else keep(each)
    return kept


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version counter of each tensor, as `version_of` does."""
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:
        return [version_of(tensor) for tensor in tensors]


def version_of(tensor: torch.Tensor) -> int:
    """Return the version counter; -1 for inference tensors, which have none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1
