"""Outermost module calls: what sentinel keeps of a healthy step, and the loss code that follows them.

A global forward-pre hook (one attribute test for inner modules) finds outermost calls; the module found gets a forward
hook of its own, which sees keyword arguments. Between an outermost call in training and `backward`, a torch-function
mode notes the operations of the user's loss code. The mode is put at the *bottom* of the mode stack and taken out from
wherever it is, so that the user's own modes nest as if it were not there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode, _len_torch_function_stack, _pop_mode, _push_mode

from hypocenter.tap.compile_guard import inside_compiled_call, never_compile, silence_global_hook_warning
from hypocenter.tap.handed_in import held_by, holders_in
from hypocenter.tap.source import user_frame
from hypocenter.tap.state import capture_ambient, capture_rng
from hypocenter.tap.tape import Event, Tape, version_of

SMALL_BUFFERS_BYTES = 64 << 20  # on the first call all buffers are copied if they are no larger than this together

_tracing_state: Callable[[], object] = torch._C._get_tracing_state
_functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]

_RANDOM = frozenset({
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli",
    "multinomial", "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_",
    "log_normal_", "cauchy_", "gumbel_softmax", "rrelu",
})  # fmt: skip
_NO_VALUE = frozenset({"backward", "register_hook", "retain_grad", "item", "tolist", "numpy", "size", "dim", "stride"})


class LossMode(TorchFunctionMode):
    """Notes each torch call of the user's loss code on the tape."""

    def __init__(self, tape: Tape, fail: Callable[[str], None]) -> None:
        super().__init__()
        self.tape = tape
        self.active = False
        self._fail = fail

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self.active or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _NO_VALUE:
            return func(*args, **kwargs)
        rng = capture_rng() if name in _RANDOM else None
        result = func(*args, **kwargs)
        try:
            if _holds_tensor(result) or name == "__setitem__":
                frame = user_frame(sys._getframe(1))
                event = Event(
                    function=func,
                    ambient=capture_ambient(),
                    rng=rng,
                    code=frame.f_code if frame else None,
                    line=frame.f_lineno if frame else 0,
                )
                self.tape.record(event, args, kwargs, result)
        except Exception as error:  # the user's loss must not fail because of us
            self.active = False
            self.tape.broken = f"noting the loss code failed: {error!r}"
            self._fail(f"loss code is not replayed: {error!r}")
        return result


def _holds_tensor(result: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return True
    return isinstance(result, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in result)


class StaysHere:
    """A hook of ours on the user's module. A copy of the module (an EMA, a pickle) gets one that does nothing."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        self._hook(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes anything, and can be loaded without us


class RootTap:
    """Hooks on outermost module calls. `paused` is set while a replay runs."""

    def __init__(
        self,
        tape: Tape,
        *,
        on_root: Callable[[torch.nn.Module], None],
        on_begin: Callable[[bool], None],
        fail: Callable[[str], None],
    ) -> None:
        self.tape = tape
        self.paused = False
        self._on_root = on_root  # an outermost module that was not seen before
        self._on_begin = on_begin  # an outermost call begins; True: in training, with gradients
        self.recomputed: list[Callable[[torch.nn.Module], None]] = []  # told of each module called inside backward
        self.on_end: Callable[[bool], None] = lambda _: None  # an outermost call is over; True: in training
        self._fail = fail
        self._mode = LossMode(tape, fail)
        self._current: torch.nn.Module | None = None
        self._event: Event | None = None
        self._entry_versions: list[tuple[torch.Tensor, int]] = []
        self._handles: dict[int, Any] = {}
        self._buffers: dict[int, _Buffers] = {}
        self._holders: dict[int, list[torch.nn.Module]] = {}  # of inputs that come in attributes
        self._undone = False
        self._hook_id: int | None = None

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo."""
        silence_global_hook_warning()
        never_compile(RootTap._enter)
        never_compile(RootTap._leave)
        never_compile(StaysHere.__call__)
        handle = module_hooks.register_module_forward_pre_hook(self._enter)
        self._hook_id = handle.id
        take_back = self._see_compiled_in_place()

        def undo() -> None:
            handle.remove()
            take_back()
            for hook in self._handles.values():
                hook.remove()
            self._handles.clear()
            self.suspend_loss_mode()

        return undo

    def _see_compiled_in_place(self) -> Callable[[], None]:
        """`model.compile()` compiles hooks away together with the call: wrap the call itself. Returns the undo."""
        original = torch.nn.Module.compile
        tap = self

        def compile(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            module, inner = self, self._compiled_call_impl
            if inner is None:
                return

            def call(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or tap._undone or inside_compiled_call() is not None:
                    return inner(*args, **kwargs)
                tap._enter(module, args)
                if tap._current is not module:
                    return inner(*args, **kwargs)
                output = None
                try:
                    output = inner(*args, **kwargs)
                finally:
                    tap._leave(module, args, kwargs, output)
                return output

            call.get_compiler_config = getattr(inner, "get_compiler_config", None)  # type: ignore[attr-defined]
            module._compiled_call_impl = call  # type: ignore[assignment]

        torch.nn.Module.compile = compile

        def undo() -> None:
            tap._undone = True
            if torch.nn.Module.compile is compile:
                torch.nn.Module.compile = original

        return undo

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or self._current is not None or self.paused:
            return
        if inside_compiled_call() is not None:
            return
        if torch._C._current_graph_task_id() != -1:  # a recompute inside backward, not a call of the program's own
            for tell in self.recomputed:
                tell(module)
            return
        if _tracing_state() is not None or _functorch_level() is not None:
            return  # torch.jit.trace and vmap would take what we do for the program's own operations
        try:
            self._begin(module, args)
        except Exception as error:
            self._outermost(None)
            self._event = None
            self._fail(f"watching the call of {type(module).__name__} failed: {error!r}")

    def _begin(self, module: torch.nn.Module, args: Any) -> None:
        self.suspend_loss_mode()
        key = id(module)
        if key not in self._buffers:
            if module._compiled_call_impl is None:
                hook = StaysHere(self._leave)
                self._handles[key] = module.register_forward_hook(hook, with_kwargs=True, always_call=True)
            self._buffers[key] = _Buffers(module)
            self._holders[key] = holders_in(module)
            self._on_root(module)
        self._outermost(module)
        if not torch.is_grad_enabled():
            self._event = None  # evaluation and generation are not steps
            self._on_begin(False)
            return
        self._entry_versions = [(a, version_of(a)) for a in args if isinstance(a, torch.Tensor)]
        self._event = Event(
            function=module,
            ambient=capture_ambient(),
            rng=capture_rng(),
            training=module.training,
            buffers=self._buffers[key].before(),
            handed=held_by(self._holders.get(key, ())),
        )
        self._on_begin(True)

    @property
    def is_inside(self) -> bool:
        """Whether an outermost module is being called."""
        return self._current is not None

    @property
    def outermost(self) -> torch.nn.Module | None:
        """The outermost module that is being called."""
        return self._current

    def reset(self) -> None:
        """Between outermost calls for certain: forget one that an interrupt cut short."""
        self.suspend_loss_mode()
        self._outermost(None)
        self._event = None

    def _outermost(self, module: torch.nn.Module | None) -> None:
        """Note which outermost module is being called. Inside it the global hook has nothing to see, and is taken out:
        torch calls modules faster where there is none. Left in where others have one too, for the order of theirs.
        """
        self._current = module
        hooks, key = module_hooks._global_forward_pre_hooks, self._hook_id
        if key is None:
            return
        if module is None:
            if key not in hooks and not self._undone:
                hooks[key] = self._enter
        elif key in hooks and len(hooks) == 1:
            del hooks[key]

    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or module is not self._current or self.paused:
            return
        if inside_compiled_call() is not None:
            return
        event, self._event = self._event, None
        self._outermost(None)
        self.on_end(event is not None)
        if event is None:
            self._resume_loss_mode()
            return
        try:
            self._buffers[id(module)].after()
            if output is None:  # it raised, or returns nothing
                return
            if any(version_of(tensor) != version for tensor, version in self._entry_versions):
                self.tape.broken = self.tape.broken or f"{type(module).__name__} changes its inputs in place"
            self.tape.record(event, args, kwargs, output)
            self._resume_loss_mode()
        except Exception as error:
            self.tape.broken = f"keeping the inputs of {type(module).__name__} failed: {error!r}"
            self._fail(self.tape.broken)
        finally:
            self._entry_versions = []

    def _resume_loss_mode(self) -> None:
        if self.tape.events and not self._mode.active:
            self._mode.active = True
            others = _pop_all()
            _push_mode(self._mode)
            for other in others:
                if other is not self._mode:
                    _push_mode(other)

    def drop_idle_loss_mode(self) -> None:
        """Take out a mode that `Tensor.backward` has put back: it notes nothing, but all operators would go through it.

        torch takes a mode off the stack for the time of its own call and puts it back after it; what `before_backward`
        takes out inside such a call comes back with its end.
        """
        if not self._mode.active:
            self.suspend_loss_mode()

    def suspend_loss_mode(self) -> None:
        """Take the mode out of the stack. Inside one of its own calls it is not there: then it only goes quiet."""
        if not self._mode.active and not _len_torch_function_stack():
            return
        self._mode.active = False
        for other in _pop_all():
            if other is not self._mode:
                _push_mode(other)


def owner_of(module: torch.nn.Module, frame: FrameType | None) -> torch.nn.Module:
    """The module whose method is calling this part of it (a LightningModule's training_step), or the part itself."""
    owner = module
    while frame is not None:
        holder = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        if isinstance(holder, torch.nn.Module) and holder is not owner and any(m is owner for m in holder.modules()):
            owner = holder
        frame = frame.f_back
    return owner


def _pop_all() -> list[Any]:
    popped = [_pop_mode() for _ in range(_len_torch_function_stack())]
    return popped[::-1]


class _Buffers:
    """Which buffers a root's forward changes, learned at its first call; copies of those before each later call.

    Versions alone do not tell: batch norm updates its running statistics without a new version.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._all: list[tuple[torch.nn.Module, str]] | None = None
        self._changing: set[tuple[int, str]] = set()
        self._seen: list[tuple[torch.nn.Module, str, torch.Tensor, int]] = []
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._n_calls = 0

    def before(self) -> list[tuple[torch.nn.Module, str, torch.Tensor]]:
        """Copies of the buffers that the coming call may change."""
        if self._all is None or self._n_calls in (1, 8, 64):
            self._all = [(m, key) for m in self._root.modules() for key, b in m._buffers.items() if b is not None]
        current = [(m, key, m._buffers[key]) for m, key in self._all if m._buffers.get(key) is not None]
        self._seen = [(m, key, b, version_of(b)) for m, key, b in current if b is not None]
        first = self._n_calls == 0
        small = first and sum(b.numel() * b.element_size() for _, _, b, _ in self._seen) <= SMALL_BUFFERS_BYTES
        self._n_calls += 1
        copies = [
            (m, key, b.detach().clone())
            for m, key, b, _ in self._seen
            if small or (id(m), key) in self._changing or (first and isinstance(m, _NormBase))
        ]
        self._copies = {(id(m), key): copy for m, key, copy in copies} if first else {}
        return copies

    def after(self) -> None:
        """Note which buffers the call changed or replaced."""
        for m, key, b, version in self._seen:
            now, copy = m._buffers.get(key), self._copies.get((id(m), key))
            if now is not b or version_of(b) != version or (copy is not None and not torch.equal(copy, b)):
                self._changing.add((id(m), key))
        self._copies = {}
        self._seen = []
