"""The torch-function mode that notes operations of the user's own code, outside of modules.

It is on the stack from the start of a step to `backward`, except inside outermost modules and compiled functions.
What leads from a module's output or a trainable tensor to the loss goes on the tape of the step. What is computed
beside it, such as a batch that is scaled before the model is called, goes on a tape of its own, the prelude: there a
replay finds how a bad value of the batch was made.

The mode is at the *bottom* of the mode stack and is taken out from wherever it is, so that the user's own modes nest as
if it were not there. Only the mode of `torch.set_default_device` is below it, which insists on that place.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch._C import _len_torch_function_stack, _pop_torch_function_stack, _push_on_torch_function_stack
from torch.overrides import TorchFunctionMode

from hypocenter.capturing import ABLE, is_capturing
from hypocenter.tap.as_the_caller import standing_for, take_out
from hypocenter.tap.loop_tape import LoopTape
from hypocenter.tap.numerics import capture_numerics
from hypocenter.tap.python_operators import PythonOperators
from hypocenter.tap.self_averages import SelfAverages
from hypocenter.tap.source import user_frame
from hypocenter.tap.state import RngState, capture_ambient, capture_rng
from hypocenter.tap.tape import Event, Tape, Written, is_trainable_leaf, storage_of
from hypocenter.tap.tree import tensors

_WRITERS_KEPT = 256  # entries
PRELUDE_EVENTS = 256  # beyond it nothing more is noted before a step: a program that computes its batches, op by op

_outside: Callable[[], str] = getattr(torch._C, "_get_privateuse1_backend_name", str)
_tracing_state: Callable[[], object] = torch._C._get_tracing_state
_functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_n_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_mode_of: Callable[[Any], object] = torch._C._get_dispatch_mode
_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY  # type: ignore[attr-defined]
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE  # type: ignore[attr-defined]
_compiler: Any = torch.compiler  # `is_compiling` is two calls, and the compiler never looks into what asks it here
_ORDINARY = (torch.Tensor, torch.nn.Parameter)  # types of tensors that have numbers unless they are of device meta
_data: Any = torch.Tensor.data
_gradient: Any = torch.Tensor.grad  # the property: what backward has left is no part of a graph

_ENTER, _EXIT = torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit._RecordFunction

_RANDOM = frozenset({
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli",
    "multinomial", "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_",
    "log_normal_", "cauchy_", "gumbel_softmax", "rrelu",
})  # fmt: skip
_NO_VALUE = frozenset({
    "backward", "register_hook", "retain_grad", "item", "tolist", "numpy", "size", "dim", "stride", "numel",
    "__set__", "__delete__", "__len__", "__format__", "__repr__", "__deepcopy__", "__reduce_ex__", "apply_", "map_",
    "requires_grad_", "share_memory_", "pin_memory", "data_ptr",
})  # fmt: skip
_READS = frozenset({"item", "tolist", "numpy", "__bool__", "__float__"})  # the program looks at the number
_OVERWRITERS = frozenset({"zero_", "fill_"})
_WRITERS = frozenset({
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__idiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__",
})  # fmt: skip
_OF_TORCH = frozenset({type(torch.Tensor.square), type(torch.square)})  # kinds of functions that are written in C
_TELLING = frozenset({  # what a tensor is: nothing is computed, and no number is read
    *(getattr(torch.Tensor, name).__get__ for name in (
        "requires_grad", "is_leaf", "shape", "dtype", "device", "layout", "ndim", "is_cuda", "_version", "grad_fn",
    )),
    *(getattr(torch.Tensor, name) for name in (
        "numel", "nelement", "dim", "size", "stride", "element_size", "data_ptr", "is_floating_point", "is_complex",
        "is_contiguous", "get_device",
    )),
})  # fmt: skip
_OF_TELLING = frozenset(map(type, _TELLING))
_SETTLED = frozenset({  # no setting chooses how they are computed
    "add", "sub", "mul", "div", "neg", "abs", "square", "sqrt", "exp", "log", "pow", "mean", "sum", "where", "clamp",
    "eq", "ne", "lt", "le", "gt", "ge", "any", "all", "max", "min", "maximum", "minimum", "argmax", "isfinite", "isnan",
    "to", "float", "double", "half", "bfloat16", "long", "int", "bool", "cpu", "type", "type_as", "detach", "clone",
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "contiguous", "expand", "unbind",
    "stack", "cat", "add_", "sub_", "mul_", "div_", "zeros", "ones", "zeros_like", "ones_like", "tensor", "item",
    *(f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in ("add", "sub", "mul", "truediv", "pow")),
    *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "and", "or", "invert", "getitem")),
})  # fmt: skip
_TORCH = str(Path(torch.__file__).parent)  # torch's own methods that are written in Python are what they seem


@dataclass(frozen=True, slots=True)
class _Before:
    """What is known and kept of an operation before it runs."""

    is_of_graph: bool  # it reads what gradients flow to
    rng: RngState | None = None
    written: Written | None = None
    can_be_repeated: bool = True
    is_random: bool = False


_OF_GRAPH, _BESIDE = _Before(True), _Before(False)


class UserCode(TorchFunctionMode):
    """A mode that notes each torch call of the user's own code.

    Args:
        tape: of the step.
        prelude: what is computed beside it.
        fail: told why nothing is noted any more.
    """

    def __init__(self, tape: Tape, prelude: Tape, fail: Callable[[str], None]) -> None:
        super().__init__()
        self.tape, self.prelude = tape, prelude
        self.is_active = False
        self.is_in_function = False  # an autograd function that is noted as one operation is being called
        self.follows_module = False  # in this micro-batch a module was called: this is loss code
        self.has_met_module = False  # ever
        self.has_trained = False  # something has gone back
        self.has_read_parameters = False  # after that
        self.has_met_func = False  # a transform of torch.func, in which nothing has a value that could be noted
        self.on_begin: Callable[[], None] = lambda: None  # told of each operation on trainable tensors outside modules
        self.loop: LoopTape | None = None  # takes the whole of the loop's code, at steps at which somebody looks at it
        self._fail = fail
        self._parameters: set[int] = set()  # storages that the program has reached around autograd: `p.data`
        self._python_operators = PythonOperators(self)
        self._writers: dict[int, tuple[CodeType, int]] = {}  # by storage and by id of what the user's code wrote to
        self.self_averages = SelfAverages()
        self._n_inside = 0  # its own calls under way, for whose time torch takes it off the stack

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _compiler._is_compiling_flag or func is _ENTER or func is _EXIT:  # around each step of an optimizer
            return func(*args, **kwargs)
        if type(func) in _OF_TELLING and func in _TELLING:  # for each parameter, in loops that libraries write
            return func(*args, **kwargs)
        if getattr(func, "__self__", None) is _gradient and args[0].is_leaf:
            return func(*args)  # thousands in a row, in optimizers and clipping that people write
        caller = sys._getframe(1)
        if type(func) not in _OF_TORCH:
            func = called(func)
        writes, loop = False, None
        if not self.is_active:
            is_noted, before = False, None
        else:
            name = getattr(func, "__name__", "")
            if args and self.has_trained and not self.has_read_parameters:
                first = args[0][0] if type(args[0]) in (list, tuple) and args[0] else args[0]
                self.has_read_parameters = type(first) is not torch.Tensor and isinstance(first, torch.nn.Parameter)
            if name in _READS and args:
                self.tape.look_at(args[0])
            writes = name in _WRITERS or (name.endswith("_") and not name.endswith("__"))
            if writes or (name == "__set__" and getattr(func, "__self__", None) is _data):
                self._note_writer(args[0] if args else kwargs.get("tensor"), caller)  # as `torch.nn.init` calls it
                if args:
                    self.self_averages.hear(name, args, kwargs)
            is_noted = name not in _NO_VALUE and not self._is_traced(args)
            before = self._before(name, args, kwargs, writes=writes) if is_noted else None
            if is_noted and self.loop is not None:
                loop = self._loop_before(writes, args)
        call = standing_for(caller)
        self._n_inside += 1
        try:
            result = call(func, args, kwargs)
        except BaseException as error:
            take_out(error)
            raise
        finally:
            self._n_inside -= 1
        if loop is not None:
            self._note_in_loop(loop, func, args, kwargs, result, caller, writes=writes)
        if before is None or not self.is_active:
            return result
        try:
            if not before.can_be_repeated:
                self._forget(args[:1])
            elif (isinstance(result, torch.Tensor) or _holds_tensor(result) or before.written is not None) and (
                getattr(func, "__self__", None) is not _gradient
            ):
                self._note(func, args, kwargs, result, before, caller)
        except Exception as error:  # the user's code must not fail because of us
            self.is_active = False
            self.tape.broken = f"noting the program's own operations failed: {error!r}"
            self._fail(f"loss code is not replayed: {error!r}")
        return result

    def _before(self, name: str, args: Any, kwargs: Any, *, writes: bool) -> _Before | None:
        """Return what is known and kept before an operation runs; None when that failed."""
        try:
            is_of_graph = _requires_grad(args)
            if not writes and name not in _RANDOM:
                return _OF_GRAPH if is_of_graph else _BESIDE
            tape = self._tape_for(is_of_graph, None)
            rng = capture_rng(_generators(args, kwargs)) if name in _RANDOM and tape is self.tape else None
            if not writes:
                return _Before(is_of_graph, rng, is_random=True)
            target = args[0] if args and isinstance(args[0], torch.Tensor) else None
            if tape is None or target is None or storage_of(target) in self._parameters:
                return _Before(is_of_graph, can_be_repeated=False)
            is_made_anew = name in _OVERWRITERS or (name in _RANDOM and tape is self.prelude)
            written = None if is_made_anew and tape.slot(target) is None else tape.before_write(target)
            return _Before(is_of_graph, rng, written, written is not None, is_random=name in _RANDOM)
        except Exception as error:
            self._fail(f"loss code is not replayed: {error!r}")
            return None

    def take_loop(self, loop: LoopTape | None) -> None:
        """Note from here on all operations with their values on this tape; None: no more."""
        self.loop = loop

    def _loop_before(self, writes: bool, args: Any) -> LoopTape | None:
        """Return the tape of the loop, which has kept what is about to be written over; None if it failed."""
        loop = self.loop
        try:
            if writes and loop is not None and args:
                loop.before_write(args[0])
        except Exception:  # it is a look that is missed, and no more
            self.lose_loop()
        return self.loop

    def _note_in_loop(
        self, loop: LoopTape, func: Any, args: Any, kwargs: Any, result: Any, caller: FrameType, *, writes: bool
    ) -> None:
        try:
            loop.note(func, getattr(func, "__name__", ""), args, kwargs, result, caller, writes=writes)
        except Exception:  # it is a look that is missed, and no more
            self.lose_loop()

    def lose_loop(self) -> None:
        """Let go of the tape of the loop: noting on it has failed."""
        if self.loop is not None:
            self.loop.give_up()
        self.loop = None

    def _note_writer(self, written: Any, caller: FrameType) -> None:
        for each in written if isinstance(written, (list, tuple)) else (written,):
            if isinstance(each, torch.Tensor) and len(self._writers) < _WRITERS_KEPT:
                frame = user_frame(caller)
                if frame is not None:
                    self._writers[id(each)] = self._writers[storage_of(each)] = frame.f_code, frame.f_lineno

    def writer_of(self, tensor: torch.Tensor) -> tuple[CodeType, int] | None:
        """Return the line of the user's code that has written to a tensor since the last update, if one was seen."""
        return self._writers.get(storage_of(tensor)) or self._writers.get(id(tensor))

    def forget_writers(self) -> None:
        """Forget who has written to tensors, as an update has been made."""
        self._writers.clear()
        self.self_averages.clear()

    def _tape_for(self, is_of_graph: bool, result: Any) -> Tape | None:
        """Return the tape that an operation belongs on; None for none."""
        if torch.is_grad_enabled() and (self.follows_module or is_of_graph or _is_computed(result)):
            return self.tape
        return None if is_of_graph else self.prelude

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, before: _Before, caller: FrameType) -> None:
        is_of_graph = before.is_of_graph
        if torch.is_grad_enabled() and (is_of_graph or self.follows_module):  # `_tape_for`, of nearly all
            tape = self.tape
        elif not is_of_graph and type(result) is torch.Tensor and not result.requires_grad:
            tape = self.prelude
        else:
            tape = self._tape_for(is_of_graph, result)
        if is_of_graph and not getattr(result, "requires_grad", True) and _is_data_of_leaf(args, result):
            self._parameters.add(storage_of(result))  # what is done to it is an update
            return
        if (
            tape is None
            or tape.is_full
            or ((type(result) not in _ORDINARY or result.is_meta) and _is_shadow((result,)))
        ):
            if tape is self.prelude and self.has_met_module:
                self.is_active = False  # until the next module: nothing else is waited for
            return
        if tape is self.prelude:
            if before.is_random or not ((args and type(args[0]) is torch.Tensor) or _holds_tensor(args)):
                self._forget(args[:1] if before.written is not None else ())
                return  # made of nothing that a replay could look at
        elif not self.follows_module:
            self.on_begin()
        if "out" in kwargs:
            kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        frame = user_frame(caller)
        is_settled = type(func) in _OF_TORCH and func.__name__ in _SETTLED
        event = Event(
            function=func,
            ambient=capture_ambient(),
            numerics=None if is_settled else capture_numerics(),
            rng=before.rng,
            code=frame.f_code if frame else None,
            line=frame.f_lineno if frame else 0,
        )
        tape.record(event, args, kwargs, result, before.written)

    @property
    def is_inside(self) -> bool:
        """Whether one of the mode's own calls is under way: what that calls is a part of it."""
        return bool(self._n_inside)

    def make_room(self) -> None:
        """Clear a full prelude in a program that has only computed outputs so far, where no step begins to do so."""
        if self.prelude.is_full and not self.has_trained:
            self.prelude.clear()

    def note_call(self, event: Event, args: Any, kwargs: Any, result: Any) -> None:
        """Note a call of a transformed function as one operation."""
        is_of_graph = any(each.requires_grad for _, each in tensors(result))
        tape = self.tape if torch.is_grad_enabled() and (self.follows_module or is_of_graph) else self.prelude
        if tape.is_full or (is_of_graph and tape is self.prelude):
            return
        if tape is self.tape and not self.follows_module:
            self.on_begin()
        try:
            with torch._C.DisableTorchFunction():  # what is computed to note it is no operation of the program
                tape.record(event, args, kwargs, result)
        except Exception as error:
            tape.broken = f"noting a call of torch.func failed: {error!r}"
            self._fail(tape.broken)

    def _is_traced(self, values: Any) -> bool:
        """Return whether tensors have no numbers now, only shapes: under vmap, export, or a tracer of any kind."""
        if _functorch_level() is not None:
            self.has_met_func = True
            return True
        for value in values:
            if type(value) not in _ORDINARY or value.is_meta:
                return is_graph_taken() or _is_shadow(values)
        return is_graph_taken()

    def _forget(self, written: Any) -> None:
        """Take these tensors for ones from outside: they were changed in place by something that is not replayed."""
        for each in written:
            if isinstance(each, (list, tuple)):
                self._forget(each)
            elif isinstance(each, torch.Tensor):
                if each.requires_grad or storage_of(each) in self._parameters:
                    self.prelude.clear()  # an update by hand: what came before was no preparation of a batch
                self.tape.forget(each)
                self.prelude.forget(each)

    def resume(self) -> None:
        """Note operations from here on; put the mode on this thread's stack if it is not there."""
        self.is_active = True
        self._parameters.clear()
        if not self._python_operators.is_on:
            self._python_operators.pass_by()
        if self._n_inside:
            return  # torch puts it back at the end of its call
        others = _pop_all() if _len_torch_function_stack() else []
        if others and others[0] is _default_device():
            _push_on_torch_function_stack(others.pop(0))
        _push_on_torch_function_stack(self)
        for other in others:
            if other is not self:
                _push_on_torch_function_stack(other)

    @contextlib.contextmanager
    def quiet(self) -> Generator[None, None, None]:
        """Note nothing of what runs in this context."""
        was_active = self.is_active
        self.suspend()
        try:
            yield
        finally:
            if was_active:
                self.resume()

    def pass_by(self, *_: object) -> Callable[[Any], None] | None:
        """Note nothing of a function that touches every parameter and computes nothing; heard by `own_frame.hear`."""
        if not self.is_active or self._n_inside:
            return None
        if _len_torch_function_stack() == 1:
            _pop_torch_function_stack()  # it is ours, as it notes; operators written in Python find none there, and run
            return self._end_of_passing
        parameters = set(self._parameters)
        self.suspend()

        def end(_: object) -> None:
            self.resume()
            self._parameters |= parameters

        return end

    def _end_of_passing(self, _: object) -> None:
        if self.is_active and not _len_torch_function_stack():
            _push_on_torch_function_stack(self)

    def suspend(self) -> None:
        """Take the mode off the stack. Inside one of its own calls it is not there: then it only stops noting."""
        self.is_active = False
        if self._python_operators.is_on:
            self._python_operators.put_back()
        if self._n_inside or not (n_modes := _len_torch_function_stack()):
            return
        for other in _pop_all() if n_modes > 1 else [_pop_torch_function_stack()]:
            if other is not self:
                _push_on_torch_function_stack(other)


def _default_device() -> object:
    """Return the mode of `torch.set_default_device`, None without one; `with torch.device(...)` does not count."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _pop_all() -> list[Any]:
    popped: list[Any] = []
    for _ in range(_len_torch_function_stack()):
        popped.append(_pop_torch_function_stack())  # noqa: PERF401 (a comprehension is a call, before Python 3.12)
    return popped[::-1]


def is_graph_taken() -> bool:
    """Return whether torch.jit.trace, make_fx or torch.export writes down what runs now, as it would write us too.

    Also by a device that captures a graph, and under a FakeTensorMode of the program's own: no tensor has numbers.
    """
    is_traced = _tracing_state() is not None or (
        _n_dispatch_modes() > 0 and (_mode_of(_PROXY) is not None or _mode_of(_FAKE) is not None)
    )
    return is_traced or (ABLE.get(_outside()) != () and is_capturing())  # mostly no device can


def _is_shadow(values: Any) -> bool:
    """Return whether there is a tensor without numbers among the values."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_meta or (type(value) not in _ORDINARY and _is_fake(value)):
                return True
        elif isinstance(value, (tuple, list)) and _is_shadow(value):
            return True
    return False


def _is_fake(tensor: torch.Tensor) -> bool:
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(tensor, fake.FakeTensor)


def _generators(args: Any, kwargs: Any) -> list[torch.Generator]:
    return [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Generator)]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    for item in value if isinstance(value, (tuple, list)) else ():  # loops: a generator is a call for each item
        if isinstance(item, torch.Tensor) or (isinstance(item, (tuple, list)) and _holds_tensor(item)):
            return True
    return False


def _requires_grad(values: Any) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (tuple, list)) and _requires_grad(value):
            return True
    return False


def _is_computed(result: Any) -> bool:
    for each in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(each, torch.Tensor) and each.requires_grad and not each.is_leaf:
            return True
    return False


def _is_data_of_leaf(args: Any, result: Any) -> bool:
    """Return whether this is `p.data` or `p.detach()` of a trainable leaf."""
    if not isinstance(result, torch.Tensor) or result.requires_grad or len(args) != 1:
        return False
    leaf = args[0]
    return isinstance(leaf, torch.Tensor) and is_trainable_leaf(leaf) and storage_of(leaf) == storage_of(result)


# A tensor's method looks itself up by its name to tell a torch-function mode of its call. Where the name leads to
# somebody's own function, which is about to call the method, the mode gets that function, and by calling it would run
# it twice.
def called(func: Any) -> Any:
    """Return torch's own method for what a mode was given as `func`; `func` itself unless somebody has replaced one."""
    if type(func) in _OF_TORCH:
        return func
    getter = getattr(func, "__self__", None)
    is_getter = isinstance(getter, property)
    put_there: Any = getter if is_getter else func
    written: Any = put_there.fget if is_getter else func
    if not isinstance(written, FunctionType) or written.__code__.co_filename.startswith(_TORCH):
        return func
    name = next((name for name, each in vars(torch.Tensor).items() if each is put_there), "")
    method = vars(torch._C.TensorBase).get(name)
    if method is None:
        return func
    return method.__get__ if is_getter else method
