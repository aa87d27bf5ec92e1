"""A micro-batch that can be done again with other inputs: forward and loss only, all else as it was."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hypocenter import own_time
from hypocenter.relations.heard import Call, Heard
from hypocenter.relations.left_on import Dropping, dropping
from hypocenter.replay.batch_rows import Rows
from hypocenter.replay.engine import Replayer
from hypocenter.replay.impossible import OutOfTime
from hypocenter.tap.left import Left, is_left
from hypocenter.tap.state import RngState, capture_rng, seeded
from hypocenter.tap.tape import PLACEHOLDERS, Event, Microbatch, storage_of
from hypocenter.tap.tree import flatten, replace_tensors, tensors

TOLERANCE = 1e-4  # relative, L2: batch-size dependent kernels make up to 1e-6, a dependence 1e-3 and more
ELEMENTS = 1 << 19  # of an output that is compared, about
SMALL = 1 << 16  # elements of what a module keeps of its batches
NO_TIME = "there was no time for it"
WHOLE = 16  # forwards: enough to ask all relations, where they hold
_ROUNDINGS = 4  # of the lowest format in use
_OF_MODULES = frozenset(vars(nn.Module()))
Place = tuple[int, str]
_RATES = {
    "dropout": 1, "dropout_": 1, "alpha_dropout": 1, "alpha_dropout_": 1, "dropout1d": 1, "dropout2d": 1,
    "dropout3d": 1, "feature_alpha_dropout": 1, "feature_alpha_dropout_": 1, "feature_dropout": 1,
    "feature_dropout_": 1, "native_dropout": 1,
}  # fmt: skip
_OF_SHAPE = frozenset(
    {"__get__", "__len__", "dim", "is_floating_point", "ndimension", "nelement", "numel", "size", "stride"}
)
"""Of an input: position of the call, and path among its arguments."""
Key = tuple[str, int]
"""Of an output: of an outermost call `OUTER` with its position, else the path of the module; and which one."""
OUTER = ">"  # begins no path of a module


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A tensor that is given to the micro-batch from outside.

    Attributes:
        place: where it is given.
        name: of the argument.
        tensor: itself, or an alias of it.
        is_of_model: a module is called with it; otherwise code outside of modules uses it.
    """

    place: Place
    name: str
    tensor: Tensor
    is_of_model: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a forward is done.

    Attributes:
        seed: other random numbers than those of the run.
        is_evaluated: modules are in evaluation mode.
    """

    seed: int | None = None
    is_evaluated: bool = False


@dataclass(slots=True, kw_only=True)
class Ran:
    """What came out of one forward.

    Attributes:
        outputs: what the outermost modules gave, and what inner ones gave last.
        losses: what backward began with.
        calls: of modules, if they were to be kept.
        buffers: of modules, as it left them, if calls were to be kept.
        attributes: the same of small tensors and numbers that are plain attributes of modules.
        read: storages of tensors that an operation was given.
        beside: shapes of what code outside of modules made of tensors from outside alone, as labels cut out of a table.
        has_drawn: random numbers were drawn; not known of those of the run.
        is_evaluated: no module was in training mode.
    """

    outputs: dict[Key, Tensor] = field(default_factory=dict[Key, Tensor])
    losses: list[Tensor] = field(default_factory=list[Tensor])
    calls: list[Call] = field(default_factory=list[Call])
    buffers: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    attributes: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    read: set[int] = field(default_factory=set[int])
    beside: list[torch.Size] = field(default_factory=list[torch.Size])
    has_drawn: bool = False
    is_evaluated: bool = False


AS_IT_WAS = Way()


@dataclass(frozen=True, slots=True)
class Change:
    """What a forward is done with, as the arguments of `Subject.run` tell it."""

    changed: Mapping[Place, Tensor]
    way: Way
    rows: Rows | None
    is_embedded: bool
    taken: Tensor | None
    goes_back: bool


class Lead(Protocol):
    """How one rank leads the others, whose model computes together with its own."""

    def forward(self, change: Change) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward: the others begin theirs before it.

        Raises:
            ReplayImpossible: on entering, where they cannot.
        """
        ...


def local(tensor: Tensor) -> Tensor:
    """Return what of a tensor lies on this rank: of a DTensor its shard, any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[attr-defined]


def without_hooks(ran: Ran) -> None:
    """Take off what FSDP2 hangs on the outputs of a forward: who goes back to them only need not gather anything."""
    for output in ran.outputs.values():
        if output._backward_hooks:
            output._backward_hooks.clear()


class Subject:
    """One micro-batch whose forward can be repeated with changes.

    Args:
        replayer: that can do it again.
        microbatch: of its tape.
        name: of a module; None: it has none.
        n_rows: samples in it, where that is known for certain; else 0.
        limit_s: for all that is asked of it; one forward is made in any case.
        whole_s: the same where so few forwards fit into `limit_s` that not all can be asked: for `WHOLE` of them.

    Attributes:
        held: what was held still in the last forward.
        n_forwards: how many were done; of a part of the samples, that part of one.
        longest_s: what one of them took at most.
        picking: ids of `given` by which code outside of modules picks rows of what was computed, or adds up in them.
        mixing: what draws numbers by which it does so, as a mixup of what a layer gave, or has other samples change the
            weights before; "": nothing.
        running: the call of the tape that is done now, in a forward.
        without_gradient: parameters that an optimizer holds, by name, to which no gradient came.
        still: what modules were given, and kept beside parameters and buffers, at the look before.
        lead: has the other ranks do each forward, too, where the model computes on several together; None: alone.
    """

    def __init__(
        self, replayer: Replayer, microbatch: Microbatch, name: Callable[[nn.Module], str | None], n_rows: int = 0,
        limit_s: float = math.inf, whole_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._replayer, self._microbatch, self.name = replayer, microbatch, name
        self.n_rows, self.n_forwards, self.held = n_rows, 0.0, Held()
        self.limit_s, self._whole_s, self._began, self.longest_s = limit_s, whole_s, own_time.now(), 0.0
        self._events: dict[int, Event] = {}
        self.running: Event | None = None
        self.without_gradient: Mapping[str, Tensor] = {}
        self.still: Sequence[Left] = ()
        self.lead: Lead | None = None
        self._thinning: dict[Key, tuple[int, int]] = {}
        self.given: list[Given] = []
        self.picking: set[int] = set()
        self.mixing, self._drawn = "", dict[int, str]()  # by slot: what draws whole numbers there
        self._beside = set[int]()  # slots of what was made of tensors from outside alone
        self._whole: dict[int, list[int]] = {}  # by slot: places in `given` of the whole numbers that it is made of
        for position, event in replayer.events(microbatch):
            self._events[position] = self._own(position, event)

    def _own(self, position: int, event: Event) -> Event:
        """Return the call with a separate tensor for each argument, so that each can be changed by itself."""

        def own(tensor: Tensor) -> Tensor:
            is_input = PLACEHOLDERS.number(tensor) is None and tensor is not event.was
            is_input = is_input and not tensor.requires_grad and not isinstance(tensor, nn.Parameter)
            return tensor.detach() if is_input else tensor

        args = tuple(replace_tensors(arg, own) for arg in event.args)
        kwargs = {key: replace_tensors(value, own) for key, value in event.kwargs.items()}
        is_of_model = event.module is not None and not self._computes_loss(event)
        sources: list[int] | None = []  # the whole numbers that it is made of alone
        n_given, n_beside = 0, 0
        for key, value in (*enumerate(args), *kwargs.items()):
            for path, tensor in flatten(value):
                slot, first = PLACEHOLDERS.number(tensor), len(self.given)
                n_given += 1
                n_beside += not tensor.requires_grad if slot is None else slot in self._beside
                is_plain = tensor.layout == torch.strided and not hasattr(tensor, "to_local")
                if slot is None and tensor is not event.was and is_plain and not tensor.requires_grad:
                    name = f"{key}{path}" if isinstance(key, str) else f"in[{key}]{path}"
                    place = (position, f"{key}{path}")
                    self.given.append(Given(place=place, name=name, tensor=tensor, is_of_model=is_of_model))
                whole = self._whole.get(slot, []) if slot is not None else []
                if slot is None and tensor.dtype in (torch.int64, torch.int32):
                    whole = [*range(first, len(self.given))]
                if _picks_rows(event, key, path):
                    self.picking |= {id(self.given[i]) for i in whole}
                    self.mixing = self.mixing or (self._drawn.get(slot, "") if slot is not None else "")
                sources = [*sources, *whole] if sources is not None and whole else None
        if is_of_model and event.lent and any(e.function is torch.autograd.grad for e in self._events.values()):
            self.mixing = self.mixing or "a step of learning within this one"  # of weights lent for this call
        if getattr(event.function, "__name__", "") in _DRAWING:
            self._drawn.update(dict.fromkeys(event.slots, f"torch.{event.function.__name__}"))
        if event.module is None and n_given == n_beside > 0:
            self._beside.update(event.slots)
        if event.module is None and sources:
            self._whole.update(dict.fromkeys(event.slots, sources))
        return replace(event, args=args, kwargs=kwargs)

    def _computes_loss(self, event: Event) -> bool:
        """Return whether it is a criterion: a module without parameters that makes a loss of outputs it is given."""
        module = event.module
        if module is None or next(module.parameters(), None) is not None:
            return False
        is_root = any(slot in event.slots for slot in self._microbatch.roots if slot is not None)
        is_last = is_root or type(module).__module__ == "torch.nn.modules.loss"
        return is_last and any(PLACEHOLDERS.number(t) is not None for _, t in tensors((event.args, event.kwargs)))

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that are called from outside of any module."""
        return [event.module for event in self._events.values() if event.module is not None]

    def module_at(self, position: int) -> nn.Module | None:
        """Return the module that is called at this position; None if it is no module."""
        return self._events[position].module

    @property
    def of_model(self) -> list[Given]:
        """The inputs that modules are called with."""
        return [each for each in self.given if each.is_of_model]

    def carries(self, n: int, read: Set[int]) -> bool:
        """Return whether modules get tensors with this size in a later dimension, or code before them in any.

        Or keep such: buffers that they change, and what else they read. So is the state of a recurrent network that
        goes on from batch to batch. A mask that was made of another batch, and is still there, is none.

        Args:
            read: storages of what a forward has read.
        """
        kept = [buffer for event in self._events.values() for _, _, buffer in event.buffers]
        ours = {storage_of(each.tensor) for each in self.given}
        own = [tensor for tensor in self.attributes() if storage_of(tensor) in read - ours]
        kept += [tensor for tensor in own if n in tensor.shape[1:] or not self._is_of_another_batch(tensor)]
        if any(n in tensor.shape for tensor in kept):
            return True
        last = max((position for position, event in self._events.items() if event.module is not None), default=0)
        for position, event in self._events.items():
            for _, tensor in tensors((event.args, event.kwargs)) if position <= last else ():
                is_from_outside = PLACEHOLDERS.number(tensor) is None and not isinstance(tensor, nn.Parameter)
                shape = tuple(tensor.shape)
                is_first = event.module is not None and shape[:1] == (n,)
                if is_from_outside and n in shape and not is_first:
                    return True
        return False

    def _is_of_another_batch(self, tensor: Tensor) -> bool:
        """Return whether it was there, as it is, at the look before, when the model was given something else."""
        were = [self._was_there(each.tensor) for each in self.of_model]
        return self._was_there(tensor) and not any(were)

    def _was_there(self, tensor: Tensor) -> bool:
        return any(is_left(tensor, each) for each in self.still)

    def attributes(self) -> Iterator[Tensor]:
        """Yield the tensors that modules keep beside parameters and buffers."""
        for module in {each for root in self.modules for each in root.modules()}:
            for key, value in list(vars(module).items()):
                if key not in _OF_MODULES:
                    yield from (tensor for _, tensor in tensors(value) if not isinstance(tensor, nn.Parameter))

    def has_list_of(self, n: int) -> bool:
        """Return whether a module is called with a list of this length, which may tell something of each sample."""
        return any(isinstance(each, (list, tuple, dict)) and len(each) == n for each in self._given_to_modules())

    def counts_to(self, n: int) -> bool:
        """Return whether code outside of modules computes with this number, as who divides by the samples does."""
        numbers = (value for e in self._events.values() if e.module is None for value in (*e.args, *e.kwargs.values()))
        return any(isinstance(value, (int, float)) and value == n for value in numbers)

    def has_of_size(self, n: int) -> bool:
        """Return whether a module is called with this number, or with a list of this length."""
        return self.has_list_of(n) or any(type(each) is int and each == n for each in self._given_to_modules())

    def _given_to_modules(self) -> Iterator[Any]:
        return (a for e in self._events.values() if e.module is not None for a in (*e.args, *e.kwargs.values()))

    @property
    def has_own_generators(self) -> bool:
        """Whether the program draws from random generators that it has made itself."""
        return any(event.rng is not None and event.rng.own for event in self._events.values())

    def tolerance(self, ran: Ran) -> float:
        """Return how far what must stay may move: by the lowest format of autocast, parameters, outputs and casts.

        What is cast to float8 by a scale of the whole tensor depends on all its samples, by a rounding.
        """
        formats = {t.dtype for t in ran.outputs.values()} | self.held.in_eight_bits
        for event in self._events.values():
            formats |= {dtype for _, enabled, dtype in event.ambient.autocast if enabled}
            if event.module is not None:
                formats |= {p.dtype for p in event.module.parameters()}
        eps = [torch.finfo(dtype).eps for dtype in formats if dtype.is_floating_point]
        return max(TOLERANCE, _ROUNDINGS * max(eps, default=0.0))

    def run(
        self, changed: Mapping[Place, Tensor] | None = None, *, keeps: bool = False, way: Way = AS_IT_WAS,
        rows: Rows | None = None, is_embedded: bool = False, then: Callable[[Ran], None] | None = None,
        beside: contextlib.AbstractContextManager[Any] | None = None, taken: Tensor | None = None,
    ) -> Ran:  # fmt: skip
        """Run forward and loss again, and return what came out, without a graph.

        Args:
            changed: other tensors for these inputs; at a place that has none, an argument of this name more.
            keeps: what all modules are given and give.
            way: how it is done.
            rows: the samples that it is done with.
            is_embedded: the changed inputs stay, and only embeddings look up the others.
            then: told of it while the graph is there; it goes back from the loss to the outputs.
            beside: entered around all of it, where nothing else of ours listens.
            taken: of each sample which one's inputs it takes here, and on all other ranks, too.

        Raises:
            OutOfTime: it was not begun.
            ReplayImpossible: with the reason.
        """
        began = own_time.now()
        if self.longest_s and began - self._began + self.longest_s > self.limit_s:
            raise OutOfTime(NO_TIME)
        pairs = [(each.tensor, changed[each.place]) for each in self.given if changed and each.place in changed]
        added = {place: new for place, new in (changed or {}).items() if all(e.place != place for e in self.given)}
        swap = {} if is_embedded else {id(old): new for old, new in pairs}

        def made_of(position: int, _: Event) -> Event:
            event = self.running = self._events[position]
            if swap:
                args = replace_tensors(event.args, lambda t: swap.get(id(t), t))
                kwargs = replace_tensors(event.kwargs, lambda t: swap.get(id(t), t))
                event = replace(event, args=args, kwargs=kwargs)
            more = {name: new for (at, name), new in added.items() if at == position}
            event = replace(event, kwargs={**event.kwargs, **more}) if more else event
            return event if way.seed is None else replace(event, rng=None)

        self.held, heard = Held(pairs if is_embedded else ()), Heard(self.name, keeps=keeps)
        self.n_forwards += 1 if rows is None else len(rows.kept) / rows.n
        ran = Ran(calls=heard.calls)

        def gather(slots: dict[int, Tensor]) -> None:
            for position, event in self._events.items():
                if event.module is not None:
                    outermost = f"{OUTER}{position}"
                    ran.outputs.update({(outermost, slot): slots[slot] for slot in event.slots if slot in slots})
            ran.outputs.update(heard.last)
            ran.losses = [slots[slot] for slot in self._microbatch.roots if slot is not None]
            ran.beside = [slots[slot].shape for slot in self._beside if slot in slots]
            ran.buffers, ran.attributes = (self._buffers(), self._plain()) if keeps else ({}, {})
            ran.has_drawn = around.rng is not None and has_drawn(around.rng)
            ran.is_evaluated = not any(each.training for root in self.modules for each in root.modules())
            if self.lead is not None:
                without_hooks(ran)
            if then is not None:
                then(ran)

        around = _Around(
            way.seed, beside or contextlib.nullcontext(), self.held, self.modules if way.is_evaluated else ()
        )
        together = contextlib.nullcontext()
        if self.lead is not None:
            together = self.lead.forward(Change(changed or {}, way, rows, is_embedded, taken, then is not None))
        with together, torch.enable_grad(), heard.listening():
            self._replayer.forward(self._microbatch, made_of, around, gather, rows)
        ran.outputs = {key: self._thinned(key, value) for key, value in ran.outputs.items()}
        ran.losses = [local(value).detach() for value in ran.losses]
        ran.read = self.held.read
        self.longest_s = max(self.longest_s, own_time.now() - began)
        self.limit_s = max(self.limit_s, min(WHOLE * self.longest_s, self._whole_s))
        return ran

    def _buffers(self) -> dict[str, Tensor]:
        """Return copies of all buffers that are not large, by name."""
        found: dict[str, Tensor] = {}
        for module in {each for root in self.modules for each in root.modules()}:
            name = self.name(module)
            for key, buffer in () if name is None else module.named_buffers(recurse=False):
                if buffer.numel() <= ELEMENTS and not hasattr(buffer, "to_local"):
                    found[f"{name}.{key}"] = buffer.detach().clone()
        return found

    def _plain(self) -> dict[str, Tensor]:
        """Return copies of the small tensors, and numbers, that are plain attributes of modules, by name."""
        found: dict[str, Tensor] = {}
        for module in {each for root in self.modules for each in root.modules()}:
            name = self.name(module)
            for key, value in list(vars(module).items()) if name is not None else ():
                if type(value) is float or (type(value) is Tensor and value.numel() <= SMALL):
                    of = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
                    found[f"{name}.{key}"] = of
        return found

    @contextlib.contextmanager
    def with_attribute(self, name: str, value: Tensor) -> Generator[None, None, None]:
        """Let a plain attribute of a module have another value in this block."""
        path, _, key = name.rpartition(".")
        module = next(each for root in self.modules for each in root.modules() if self.name(each) == path)
        held = vars(module)
        was = {key: held[key]} if key in held else {}
        held[key] = float(value) if type(was.get(key)) is float else value
        try:
            yield
        finally:
            del held[key]
            held.update(was)

    def _thinned(self, key: Key, value: Tensor) -> Tensor:
        """Return every n-th value of a large output, along a dimension whose size no input has (a vocabulary)."""
        value = local(value)
        if key not in self._thinning:
            sizes = {size for each in self.given for size in each.tensor.shape}
            dims = [dim for dim, size in enumerate(value.shape) if size not in sizes] or [*range(value.dim())]
            self._thinning[key] = dims[-1] if dims else 0, -(-value.numel() // ELEMENTS)
        dim, step = self._thinning[key]
        return value.detach() if step < 2 else value.detach().movedim(dim, -1)[..., ::step].movedim(-1, dim).clone()


_DRAWING = frozenset({"randperm", "randint", "multinomial"})
_PICKS = frozenset({"index_select", "index_add", "index_add_", "index_copy", "scatter_add", "scatter_add_", "gather"})


def _picks_rows(event: Event, key: int | str, path: str) -> bool:
    """Return whether this argument of an operation tells which rows of a computed tensor are read or written."""
    if event.module is not None or not event.args or isinstance(event.args[0], nn.Parameter):
        return False
    name = getattr(event.function, "__name__", "")
    if name == "__getitem__":
        return key == 1 and path in ("", "[0]")
    return name in _PICKS and key != 0 and (event.args[1:2] or (event.kwargs.get("dim"),))[0] == 0


class _Around(contextlib.ExitStack):
    """The contexts that a forward runs in: seed, evaluation mode, listeners."""

    def __init__(
        self, seed: int | None, beside: contextlib.AbstractContextManager[Any], held: Held,
        evaluated: Sequence[nn.Module],
    ) -> None:  # fmt: skip
        super().__init__()
        self._seed, self._beside, self._held, self._evaluated = seed, beside, held, evaluated
        self.rng: RngState | None = None

    def __enter__(self) -> _Around:
        super().__enter__()
        if self._seed is not None:
            seeded(self._seed)
            self.rng = capture_rng()
        for module in (each for root in self._evaluated for each in root.modules()):
            self.callback(setattr, module, "training", module.training)
            module.training = False
        self.enter_context(self._beside)
        self.enter_context(self._held)
        return self


"""What asks for no value of a tensor."""
_ATTENTION, _ATTENTION_RATE = "scaled_dot_product_attention", 4
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_TRAINING = 5  # place of `training` among the arguments of `batch_norm`


class Held(TorchFunctionMode):
    """Turn dropout off, embed other tokens where told to, and normalise with the averages of a BatchNorm.

    Args:
        embedded: (tokens, those to look up in their place).

    Attributes:
        has_batch_norm: one was met in training that has averages: its statistics mix samples by definition.
        has_own_statistics: one that has none was met, and left as it is.
        read: storages of tensors that an operation was given, beside questions about their shape.
        in_eight_bits: formats of float8 that something was cast to.
        dropped: calls of functions by which the program would have dropped something.
    """

    def __init__(self, embedded: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        super().__init__()
        self._embedded = embedded
        self.has_batch_norm = self.has_own_statistics = False
        self.read: set[int] = set()
        self.in_eight_bits: set[torch.dtype] = set()
        self.dropped: list[Dropping] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name not in _OF_SHAPE:
            given = (*args, *kwargs.values(), *(t for each in args if isinstance(each, (list, tuple)) for t in each))
            self.read |= {storage_of(each) for each in given if isinstance(each, Tensor)}
        rate_at = _ATTENTION_RATE if name == _ATTENTION else _RATES.get(name)
        if rate_at is not None:
            rate = _given(args, kwargs, rate_at, "dropout_p" if name == _ATTENTION else "p")
            dropped = dropping(func, args, kwargs, rate, sys._getframe(1))
            self.dropped += [] if dropped is None else [dropped]
        if name in _RATES:
            args = _with(args, kwargs, _RATES[name], "p", 0.0)
        elif name == _ATTENTION:
            args = _with(args, kwargs, _ATTENTION_RATE, "dropout_p", 0.0)
        elif name in _RECURRENT:  # its only number that is no whole one
            args = tuple(0.0 if type(each) is float else each for each in args)
        elif name == "batch_norm" and _given(args, kwargs, _TRAINING, "training"):
            if _given(args, kwargs, 1, "running_mean") is None:
                self.has_own_statistics = True
            else:
                self.has_batch_norm = True
                args = _with(args, kwargs, _TRAINING, "training", False)
        elif name == "embedding" and self._embedded:
            args = self._other_tokens(args)
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and made.dtype.itemsize == 1 and made.dtype.is_floating_point:
            self.in_eight_bits.add(made.dtype)
        return made

    def _other_tokens(self, args: Any) -> Any:
        tokens = args[0] if args else None
        for old, new in self._embedded:
            if isinstance(tokens, Tensor) and tokens.shape == old.shape and torch.equal(tokens, old):
                return (new, *args[1:])
        return args


def _given(args: Any, kwargs: dict[str, Any], at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)


def _with(args: Any, kwargs: dict[str, Any], at: int, name: str, value: Any) -> Any:
    """Return the arguments with another value for one of them."""
    if len(args) > at:
        return (*args[:at], value, *args[at + 1 :])
    kwargs[name] = value
    return args


def has_drawn(before: RngState) -> bool:
    """Return whether one of these random generators has been drawn from since."""
    now = capture_rng()
    pairs = [(before.cpu, now.cpu), (before.device, now.device), *zip(before.devices, now.devices, strict=False)]
    is_torch = any(a is not None and b is not None and not torch.equal(a, b) for a, b in pairs)
    of_numpy = [state and (state[1].tobytes(), *state[2:]) for state in (before.numpy, now.numpy)]
    return is_torch or before.python != now.python or of_numpy[0] != of_numpy[1]
