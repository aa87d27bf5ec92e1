"""Outermost module calls: what sentinel keeps of a healthy step, and the loss code that follows them.

Outermost calls are heard from inside `Module.__call__` itself (`own_frame`): no module carries a hook of ours. Inside
one there is mostly nothing to hear, and inner modules pay for one test. Outside of them a torch-function mode notes
operations (`user_code`).
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, overload

import torch
from torch._utils import _unflatten_dense_tensors
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from hypocenter.capturing import is_capturing
from hypocenter.tap.after_calls import AfterCalls
from hypocenter.tap.compile_guard import inside_compiled_call, never_compile
from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.gradients import PLAIN_TYPES
from hypocenter.tap.handed_in import held_by, holders_in
from hypocenter.tap.lent import lent_to
from hypocenter.tap.own_frame import BESIDE_TORCH, RAISED, OwnFrame, hear
from hypocenter.tap.source import user_frame
from hypocenter.tap.state import capture_ambient, capture_rng
from hypocenter.tap.tape import Event, Tape, version_of, versions_of
from hypocenter.tap.user_code import PRELUDE_EVENTS, UserCode, is_graph_taken
from hypocenter.tap.weakly import Ref

PRELUDE_BYTES = 256 << 20  # of inputs that are kept so that a value of the batch can be followed back

_functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
SMALL_BUFFERS_BYTES = 64 << 20  # on the first call all buffers are copied if they are no larger than this together
LOOKS = (1, 8, 64)  # calls at which modules, buffers and parameters of a root are looked for anew

_IS_CONTIGUOUS = torch.Tensor.is_contiguous
_DTYPE, _DEVICE = map(operator.attrgetter, ("dtype", "device"))
_Key = tuple[int, str]


class RootTap:
    """Listens to calls of outermost modules."""

    def __init__(
        self,
        tape: Tape,
        *,
        on_root: Callable[[torch.nn.Module], None],
        on_begin: Callable[[bool], None],
        fail: Callable[[str], None],
    ) -> None:
        self.tape = tape
        self.after_calls = AfterCalls()
        self._calls = OwnFrame(torch.nn.Module._wrapped_call_impl, self._enter)
        self._paused = False
        self._on_root = on_root  # an outermost module that was not seen before
        self._on_begin = on_begin  # an outermost call begins; True: in training, with gradients
        self.recomputed: list[Callable[[torch.nn.Module], None]] = []  # told of each module called inside backward
        self.beginning: list[Callable[[torch.nn.Module, Any], None]] = []  # of each outermost call, before it begins
        self.on_end: Callable[[bool], None] = lambda _: None  # an outermost call is over; True: in training
        self.on_output: Callable[[torch.nn.Module, Any], None] = _ignore  # the same, once it is on its tape
        self._fail = fail
        self.prelude = Tape(PRELUDE_BYTES, PRELUDE_EVENTS)
        self.user_code = UserCode(tape, self.prelude, fail)
        self.user_code.on_begin = self._begin_without_module
        self._has_begun = False  # a micro-batch of a program without modules
        self._current: torch.nn.Module | None = None
        self._event: Event | None = None
        self._entry_versions: list[tuple[torch.Tensor, int]] = []
        self._buffers: dict[int, ChangingBuffers] = {}
        self._holders: dict[int, list[weakref.ref[torch.nn.Module]]] = {}  # of inputs that come in attributes

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo."""
        for each in (RootTap._enter, RootTap._leave, UserCode.__torch_function__, *BESIDE_TORCH):
            never_compile(each)
        self._calls.listen()
        passed_by = [hear(each, "zero_grad", self.user_code.pass_by) for each in (Optimizer, torch.nn.Module)]
        self.begin_step()

        def undo() -> None:
            for each in (self._calls.stop, *passed_by, self.suspend):
                each()

        return undo

    @property
    def paused(self) -> bool:
        """Whether a replay runs, to which nothing listens."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._outermost(self._current)

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        """Note that a module is called, if it is the outermost; return what hears of the end of the call, or None."""
        if self._paused or inside_compiled_call() is not None:
            return None
        is_recompute = torch._C._current_graph_task_id() != -1  # inside backward: no call of the program's own
        if is_recompute and not is_capturing():
            for tell in self.recomputed:
                tell(module)
        if self._current is not None or is_recompute:
            is_heard = module in self.after_calls and not is_capturing()
            return functools.partial(self._tell, module, args) if is_heard else None
        if is_graph_taken() or _functorch_level() is not None:
            self.user_code.has_met_func |= _functorch_level() is not None
            self.suspend()
            return None  # torch.jit.trace, vmap and a graph would take what we do for the program's own operations
        try:
            self._begin(module, args)
        except Exception as error:
            self._outermost(None)
            self._event = None
            self._fail(f"watching the call of {type(module).__name__} failed: {error!r}")
            return None
        return functools.partial(self._leave, module, args, kwargs)

    def _tell(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if output is not RAISED and self.after_calls:
            self.after_calls.tell(module, args, output)

    def _begin(self, module: torch.nn.Module, args: Any) -> None:
        self.user_code.suspend()
        self.user_code.has_met_module = True
        self.user_code.self_averages.n_calls += 1
        key = id(module)
        if key not in self._buffers:
            self._buffers[key] = ChangingBuffers()
            self._holders[key] = [Ref(holder) for holder in holders_in(module)]
            weakref.finalize(module, self._forget, key).atexit = False
            self._on_root(module)
        if self.beginning:
            for tell in list(self.beginning):
                tell(module, args)
        self._outermost(module)
        if self.prelude.is_full:
            self.user_code.make_room()
        is_training = torch.is_grad_enabled()  # evaluation and generation are not steps, but a target network is
        if not is_training and (self.prelude.is_full or torch.is_inference_mode_enabled()):
            self._event = None
            self._on_begin(False)
            return
        self._entry_versions = []
        for each in args:
            if isinstance(each, torch.Tensor):
                self._entry_versions.append((each, version_of(each)))
        holders = self._holders[key]
        caller = user_frame(sys._getframe(1))
        self._event = Event(
            function=module,
            code=caller.f_code if caller else None,
            line=caller.f_lineno if caller else 0,
            ambient=capture_ambient(),
            rng=capture_rng(),
            training=module.training,
            buffers=self._buffers[key].before(module),
            parameters=(parameters := self._buffers[key].parameters()),
            versions=versions_of(parameters),
            handed=held_by([holder for ref in holders if (holder := ref()) is not None]) if holders else [],
            lent=lent_to(module, sys._getframe(1)),
        )
        self._on_begin(is_training)

    def _forget(self, key: int) -> None:
        """Forget a module that was called outermost and is gone: another one may get its id."""
        self._buffers.pop(key, None)
        self._holders.pop(key, None)

    @property
    def is_inside(self) -> bool:
        """Whether an outermost module is being called."""
        return self._current is not None

    @property
    def outermost(self) -> torch.nn.Module | None:
        """The outermost module that is being called."""
        return self._current

    def reads_parameters(self) -> bool:
        """Return whether the program's own code has read a parameter in a step, or may have: not all was noted."""
        return self.user_code.has_read_parameters or self.prelude.is_full

    def reset(self) -> None:
        """Forget a call that an interrupt cut short: no outermost call is under way now for certain."""
        self.user_code.suspend()
        if self._current is not None:
            self._outermost(None)
        self._event = None

    def _outermost(self, module: torch.nn.Module | None) -> None:
        """Set which outermost module is being called."""
        self._current = module
        self._calls.mute(is_mute=self._paused or (module is not None and not self.after_calls))

    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module is not self._current or self._paused:
            return
        if self.after_calls:
            self._tell(module, args, output)
        if self.user_code.loop is not None and output is not None and output is not RAISED:
            self._note_in_loop(module, args, kwargs, output)
        event, self._event = self._event, None
        self._outermost(None)
        is_training = event is not None and event.ambient.grad
        self.on_end(is_training)
        if event is None:
            self._tell_of(module, output)
            if not self.prelude.is_full:
                self.user_code.resume()
            return
        try:
            tape = self.tape if is_training else self.prelude
            self.user_code.follows_module |= is_training
            self._buffers[id(module)].after()
            if output is None or output is RAISED:
                return
            for tensor, version in self._entry_versions:
                if version_of(tensor) != version:
                    event.why_not = f"{type(module).__name__} changes its inputs in place"
            tape.record(event, args, kwargs, output)
            self._tell_of(module, output)
            self.user_code.resume()
        except Exception as error:
            self.tape.broken = f"keeping the inputs of {type(module).__name__} failed: {error!r}"
            self._fail(self.tape.broken)
        finally:
            self._entry_versions = []

    def _note_in_loop(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        loop = self.user_code.loop
        try:
            if loop is not None:
                with torch._C.DisableTorchFunction():  # a mode of the program's own hears nothing of it
                    loop.call(module, args, kwargs, output, sys._getframe(1))
        except Exception:  # it is a look that is missed, and no more
            self.user_code.lose_loop()

    def _tell_of(self, module: torch.nn.Module, output: Any) -> None:
        if output is None or output is RAISED:
            return
        try:
            self.on_output(module, output)
        except Exception as error:
            self.on_output = _ignore
            self._fail(f"outputs are not looked at any more: {error!r}")

    def _begin_without_module(self) -> None:
        """Begin a micro-batch: the user's own code computes with a trainable tensor before any module is called."""
        if not self._has_begun and not self.user_code.has_met_module:
            self._has_begun = True
            self._on_begin(True)

    def begin_step(self) -> None:
        """Begin a step or micro-batch: what comes belongs to it."""
        self._has_begun = self.user_code.follows_module = False
        self.user_code.resume()

    def suspend_between(self) -> None:
        """Note nothing while the gradients are being worked on, unless a loss is still to be computed."""
        if not self.user_code.follows_module:
            self.suspend()

    def suspend(self) -> None:
        """Note nothing of the user's own code until a module is called or the next step begins."""
        self.user_code.suspend()


def _ignore(module: torch.nn.Module, output: Any) -> None:
    """Do nothing: nobody wants to know of outputs."""


def owner_of(module: torch.nn.Module, frame: FrameType | None) -> torch.nn.Module:
    """Return the module whose method calls this part of it (a LightningModule's training_step), or the part itself."""
    owner = module
    while frame is not None:
        holder = variables_of(frame).get("self") if frame.f_code.co_argcount else None
        if isinstance(holder, torch.nn.Module) and holder is not owner and any(m is owner for m in holder.modules()):
            owner = holder
        frame = frame.f_back
    return owner


"""Id of a module, and the name of a buffer in it."""

_Homes = Sequence[tuple[weakref.ref[torch.nn.Module], int, list[str]]]
"""Modules, their ids, and names of buffers in each."""

Saved = tuple[torch.nn.Module, str, torch.Tensor]
"""A module, the name of a buffer in it, and its values."""


class SavedBuffers(Sequence[Saved]):
    """Copies of buffers, those of one format and device in one operation; cut apart only when somebody asks.

    Args:
        buffers: as they are now.
        kinds: of the buffers that were saved before these.
    """

    def __init__(self, buffers: Sequence[Saved] = (), kinds: Kinds | None = None) -> None:
        self._buffers = buffers
        self._copies: list[tuple[Sequence[int], torch.Tensor]] = []  # places among the buffers, their values in a row
        if not buffers:
            return
        values = [buffer for *_, buffer in buffers]
        had_grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # `no_grad` is six calls of Python
        try:
            for places in (kinds or Kinds()).of(values):
                self._copies += _copied(values if len(places) == len(values) else [values[i] for i in places], places)
        finally:
            torch._C._set_grad_enabled(had_grad)

    def __len__(self) -> int:
        return len(self._buffers)

    @overload
    def __getitem__(self, at: int) -> Saved: ...
    @overload
    def __getitem__(self, at: slice) -> list[Saved]: ...
    def __getitem__(self, at: int | slice) -> Saved | list[Saved]:
        found: dict[int, Saved] = {}
        for places, copy in self._copies:
            buffers = [self._buffers[i] for i in places]
            values = [copy] if len(places) == 1 else _unflatten_dense_tensors(copy, [b for *_, b in buffers])
            found.update({i: (m, key, each) for i, (m, key, _), each in zip(places, buffers, values, strict=True)})
        return found[range(len(self))[at]] if isinstance(at, int) else [found[i] for i in range(len(self))[at]]

    def __iter__(self) -> Iterator[Saved]:
        return iter(self[:])


class Kinds:
    """Which of some tensors have one format and device; found again only where these have changed."""

    def __init__(self) -> None:
        self._known: tuple[list[torch.dtype], list[torch.device]] = ([], [])
        self._places: list[list[int]] = []

    def of(self, tensors: Sequence[torch.Tensor]) -> list[list[int]]:
        """Return the places of the tensors of each kind."""
        now = list(map(_DTYPE, tensors)), list(map(_DEVICE, tensors))
        if now != self._known:
            found: dict[tuple[torch.dtype, torch.device], list[int]] = {}
            for place, kind in enumerate(zip(*now, strict=True)):
                found.setdefault(kind, []).append(place)
            self._known, self._places = now, list(found.values())
        return self._places


def _copied(buffers: list[torch.Tensor], places: Sequence[int]) -> list[tuple[Sequence[int], torch.Tensor]]:
    if len(buffers) > 1 and PLAIN_TYPES.issuperset(map(type, buffers)) and all(map(_IS_CONTIGUOUS, buffers)):
        return [(places, torch._C._nn.flatten_dense_tensors(buffers))]  # type: ignore[reportAttributeAccessIssue]
    return [([place], buffer.clone()) for place, buffer in zip(places, buffers, strict=True)]


class ChangingBuffers:
    """Which buffers a root's forward changes, learned at its first call; copies of those before each later call.

    Versions alone do not tell: batch norm updates its running statistics without a new version. Learned again when a
    part goes to training or to evaluation.
    """

    def __init__(self) -> None:
        self._all: _Homes | None = None
        self._still: _Homes = []  # of these, not known to change
        self._moving: _Homes = []
        self._n_sorted = -1  # of the changing ones, when they were told from the others
        self._kinds = Kinds()
        self._parameters: list[weakref.ref[torch.nn.Parameter]] = []
        self._changing: set[_Key] = set()
        self._unchanged: list[tuple[Saved, int]] = []  # not known to change, with their versions before the call
        self._copies: dict[_Key, torch.Tensor] = {}
        self._n_calls = 0
        self._flags: list[bool] = []  # whether each module with buffers is in training

    def before(self, root: torch.nn.Module) -> SavedBuffers:
        """Return copies of the buffers that the coming call may change."""
        if self._all is None or self._n_calls in LOOKS:
            self._all, self._n_sorted = (
                [(Ref(m), id(m), [key for key, _ in m._buffers.items()]) for m in root.modules() if m._buffers],
                -1,
            )
            self._parameters = [Ref(p) for p in root.parameters()]
        is_first = self._n_calls == 0
        self._n_calls += 1
        if not self._all:
            return _NOTHING
        if self._n_sorted != len(self._changing):
            self._sort(self._all)
        if is_first or self._have_turned(self._all):
            is_first, self._flags = True, [(m := ref()) is not None and m.training for ref, _, _ in self._all]
        still = _present(self._still)
        self._unchanged = [(each, version_of(each[2])) for each in still] if still else []
        if not is_first:
            return SavedBuffers(_present(self._moving), self._kinds)
        is_small = sum(b.numel() * b.element_size() for *_, b in still) <= SMALL_BUFFERS_BYTES
        looked_at = [each for each in still if is_small or isinstance(each[0], _NormBase)]
        saved = SavedBuffers([*_present(self._moving), *looked_at])
        self._copies = {(id(m), key): copy for m, key, copy in saved}
        return saved

    def _have_turned(self, homes: _Homes) -> bool:
        """Return whether a module with buffers has gone to training or evaluation. It takes one call for each."""
        if len(homes) != len(self._flags):
            return True
        for (ref, _, _), was in zip(homes, self._flags, strict=True):
            module = ref()
            if (module is not None and module.training) != was:
                return True
        return False

    def _sort(self, homes: _Homes) -> None:
        """Tell those that change from the others."""
        changing, self._n_sorted = self._changing, len(self._changing)
        self._moving = [(ref, n, [key for key in keys if (n, key) in changing]) for ref, n, keys in homes]
        self._still = [(ref, n, [key for key in keys if (n, key) not in changing]) for ref, n, keys in homes]
        self._moving, self._still = ([home for home in each if home[2]] for each in (self._moving, self._still))

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters of the whole root, as they were when its buffers were last looked for."""
        return [p for ref in self._parameters if (p := ref()) is not None]

    def after(self) -> None:
        """Note which buffers the call changed or replaced."""
        for (m, key, b), version in self._unchanged:
            now = m._buffers[key] if key in m._buffers else None  # noqa: SIM401 - a ScriptModule's have no `get`
            copy = self._copies.get((id(m), key))
            if now is not b or version_of(b) != version or (copy is not None and not torch.equal(copy, b)):
                self._changing.add((id(m), key))
        self._copies, self._unchanged = {}, []


def _present(homes: _Homes) -> list[Saved]:
    """Return the buffers that are there now."""
    found: list[Saved] = []
    for ref, _, keys in homes:
        module = ref()
        if module is not None:
            held = module._buffers
            for key in keys:
                if key in held and (buffer := held[key]) is not None:  # a ScriptModule's have no `get`
                    found.append((module, key, buffer))  # noqa: PERF401 (a comprehension is a call)
    return found


_NOTHING = SavedBuffers()
