"""A trained parameter that the loss depends on, and that no gradient reaches: an operation on the way has none.

Rounding, signs, comparisons, indices and numbers handed to Python have no gradient, or one that is 0 everywhere. A
parameter that comes to the loss only through one of them is never trained. Nor is one inside of a reentrant checkpoint
of which no input needs a gradient: it computes without a graph, and its backward is never called. It is told apart from
what is cut on purpose (`detach()`, `no_grad()`), from what happens to be 0 here (an expert without tokens, a unit that
is off), and from what does not matter: the parameter is changed in a replay, and the loss must change.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from hypocenter.nouns import Source
from hypocenter.relations.called import called_at
from hypocenter.relations.contracts import Wrong
from hypocenter.relations.subject import Ran, Subject
from hypocenter.tap.own_frame import CannotListen, OwnFrame
from hypocenter.tap.tree import replace_tensors, tensors

_MOST_ELEMENTS = 1 << 24  # of the parameters that are changed at once
_LEAST = 1e-5  # of the loss, by which it must change
_FLAT = frozenset({
    "round", "round_", "floor", "floor_", "ceil", "ceil_", "trunc", "trunc_", "fix", "sign", "sign_", "sgn",
    "heaviside", "floor_divide", "__floordiv__",
})  # fmt: skip
"""Their gradient is 0 wherever they have one."""
REENTRANT = "a reentrant checkpoint"
_CHECKPOINT = CheckpointFunction.forward.__code__
_TO_PYTHON = frozenset({"item", "tolist", "numpy", "__float__", "__int__", "__array__"})
_ON_PURPOSE = frozenset({"detach", "detach_", "requires_grad_", "__get__"})  # the last: of `.data`


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place where gradients end.

    Attributes:
        operation: name of the function of torch.
        module: the innermost one whose code has called it; None outside of any.
        source: the line.
        is_own: it is an autograd function of the program's own, that reads a parameter which it is not given.
    """

    operation: str
    module: nn.Module | None
    source: Source | None
    is_own: bool = False


class _Checkpoints(TorchFunctionMode):
    """Knows reentrant checkpoints, begun where gradients are wanted, whose backward will never be called.

    And the program's own autograd functions, whose forward autograd runs without a graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_cut, self._stop = False, lambda: None
        self._own: dict[CodeType, tuple[str, frozenset[int]]] = {}  # by forward: the function, ids of what it is given

    def __enter__(self) -> Any:
        with contextlib.suppress(CannotListen, KeyError, AttributeError):
            frame = OwnFrame(vars(torch.autograd.Function)["apply"].__func__, self._begin)
            frame.listen()
            self._stop = frame.stop
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stop()

    def _begin(self, function: Any, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if function is CheckpointFunction:
            self._is_cut = torch.is_grad_enabled() and not any(t.requires_grad for _, t in tensors(args))
        elif not function.__module__.startswith("torch.") and torch.is_grad_enabled():
            code = getattr(function.forward, "__code__", None)
            if code is not None:
                self._own[code] = function.__qualname__, frozenset(map(id, args))

    def cut_around(self, frame: Any) -> Any | None:
        """Return the frame of such a checkpoint, or of forward of such a function, around this one; None: of none."""
        while (self._is_cut or self._own) and frame is not None:
            if (self._is_cut and frame.f_code is _CHECKPOINT) or frame.f_code in self._own:
                return frame
            frame = frame.f_back
        return None

    def own(self, frame: Any) -> tuple[str, frozenset[int]] | None:
        """Return the name of the program's own function whose forward this frame is, and ids of what it is given."""
        return self._own.get(frame.f_code)


class _Ends(_Checkpoints):
    """Follow parameters through the forward as far as their gradients reach.

    Attributes:
        breaks: by number of the parameter, in order.
        on_purpose: numbers of parameters that the program cuts off somewhere.
    """

    def __init__(self, subject: Subject, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self._subject, self._is_over = subject, False
        self._all = parameters
        self._parameters = {id(p): frozenset((number,)) for number, p in enumerate(parameters)}
        self._known: dict[int, tuple[Tensor, frozenset[int]]] = {}  # results, which are held
        self.breaks: defaultdict[int, list[Break]] = defaultdict(list)
        self.on_purpose: set[int] = set()

    def numbers(self, tensor: Tensor) -> frozenset[int]:
        """Return the numbers of the parameters that receive gradients through this value."""
        found = self._known.get(id(tensor))
        return self._parameters.get(id(tensor), frozenset()) if found is None else found[1]

    def stop(self) -> None:
        """Stop following: what is called from here on does not belong to the program."""
        self._is_over = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = frozenset[int]() if self._is_over else self._given(args, kwargs)
        result = func(*args, **kwargs)
        if not given:
            return result
        name = getattr(func, "__name__", "")
        if not torch.is_grad_enabled() and (checkpoint := self.cut_around(sys._getframe(1))) is not None:
            module, source = called_at(self._subject, checkpoint.f_back)
            operation, args_given = self.own(checkpoint) or (REENTRANT, frozenset())
            place = Break(operation=operation, module=module, source=source, is_own=operation != REENTRANT)
            for number in given - {n for n in given if id(self._all[n]) in args_given}:
                self.breaks[number].append(place)
            return result
        made = [t for _, t in tensors(args[:1] if result is None else result)]
        if not made and name not in _TO_PYTHON:
            return result  # a size, a name
        lost = [t for t in made if not t.requires_grad]
        if name in _ON_PURPOSE or not torch.is_grad_enabled():
            if lost:
                self.on_purpose |= self._given(args, kwargs, but_parameters=True)
        elif lost or name in _FLAT or name in _TO_PYTHON:
            module, source = called_at(self._subject, sys._getframe(1))
            for number in given:
                self.breaks[number].append(Break(operation=name.strip("_"), module=module, source=source))
        if name not in _FLAT:
            for tensor in made:
                if tensor.requires_grad and id(tensor) not in self._parameters:
                    self._known[id(tensor)] = tensor, self.numbers(tensor) | given
        return result

    def _given(self, args: Any, kwargs: Any, *, but_parameters: bool = False) -> frozenset[int]:
        found = frozenset[int]()
        for value in (*args, *kwargs.values()):
            if isinstance(value, (Tensor, list, tuple)):
                given = (t for _, t in tensors(value) if t.requires_grad)
                found = found.union(
                    *(self.numbers(t) for t in given if not (but_parameters and id(t) in self._parameters))
                )
        return found


def cut_by_flat(subject: Subject, losses: Sequence[Tensor]) -> list[tuple[Break, Wrong, tuple[str, ...]]]:
    """Return what keeps gradients from parameters that matter, with the names of these parameters.

    It takes a forward, if there are such, and one for each place.

    Args:
        losses: of the micro-batch as it was.

    Raises:
        ReplayImpossible, OutOfTime: with the reason.
    """
    named = {
        name: p for name, p in subject.without_gradient.items()
        if p.layout == torch.strided and p.is_floating_point() and not hasattr(p, "to_local")
    }  # fmt: skip
    if not named:
        return []
    parameters, names = [*named.values()], [*named]
    ends, arrived = _Ends(subject, parameters), set[int]()

    def look(ran: Ran) -> None:
        ends.stop()
        for loss in ran.losses:
            arrived.update(ends.numbers(loss))

    subject.run(then=look, beside=ends)
    by_line: defaultdict[object, list[int]] = defaultdict(list)  # layers of one class have one fault
    for number, breaks in sorted(ends.breaks.items()):
        if number not in arrived and number not in ends.on_purpose:
            first = breaks[0]
            by_line[first if first.source is None else (first.operation, first.source)].append(number)
    found: list[tuple[Break, Wrong, tuple[str, ...]]] = []
    for numbers in by_line.values():
        place = ends.breaks[numbers[0]][0]
        cut = [parameters[number] for number in numbers]
        if sum(p.numel() for p in cut) <= _MOST_ELEMENTS:
            now = subject.run(beside=_InPlaceOf(cut)).losses
            if any(_is_other(a, b) for a, b in zip(losses, now, strict=True)):
                of = tuple(names[number] for number in numbers)
                found.append((place, _wrong(place, of), of))
    return found


def _is_other(a: Tensor, b: Tensor) -> bool:
    return bool(((a - b).abs() > _LEAST * b.abs()).any())


class _InPlaceOf(_Checkpoints):
    """Give functions other values for some parameters, but where a gradient is cut off on purpose.

    Nothing is written to the parameters: others may read them now.

    Args:
        parameters: of strided floats.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self._others = {id(p): _moved(p, generator) for p in parameters}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_cut = not torch.is_grad_enabled() and self.cut_around(sys._getframe(1)) is None
        if getattr(func, "__name__", "") in _ON_PURPOSE or is_cut:
            return func(*args, **(kwargs or {}))
        return func(*replace_tensors(args, self._other), **replace_tensors(kwargs or {}, self._other))

    def _other(self, tensor: Tensor) -> Tensor:
        return self._others.get(id(tensor), tensor)


def _moved(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Return the parameter with noise of its own size added."""
    values = parameter.detach()
    size = max(float(values.float().square().mean().sqrt()), 0.1)
    return values + size * torch.randn(values.shape, generator=generator, device="cpu").to(values.device, values.dtype)


def _wrong(place: Break, names: Sequence[str]) -> Wrong:
    who = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
    verb, whose = ("are", "their") if len(names) > 1 else ("is", "its")
    if place.operation == REENTRANT:
        return Wrong(
            title=f"no gradient reaches {who}: nothing that {whose} reentrant checkpoint is given needs one",
            why=f"{who} {verb} to be trained, and the gradient is 0 or missing; the loss depends on it, as a replay "
            "with other values shows, but a reentrant checkpoint goes back only where an input of it needs a gradient",
            remedy="use_reentrant=False, or requires_grad_() on what the checkpoint is given (in transformers "
            "enable_input_require_grads())",
        )
    if place.is_own:
        them = "them" if len(names) > 1 else "it"
        return Wrong(
            title=f"no gradient reaches {who}: {place.operation} reads {them}, and is not given {them}",
            why=f"{who} {verb} to be trained, and the gradient is 0 or missing; the loss depends on it, as a replay "
            f"with other values shows, but forward of {place.operation} runs without a graph, and its backward returns "
            "gradients of what it is given alone",
            remedy=f"give the parameters to {place.operation}.apply one by one and return their gradients, or use "
            "torch.utils.checkpoint",
        )
    return Wrong(
        title=f"no gradient reaches {who}: {place.operation} has none",
        why=f"{who} {verb} to be trained, and the gradient is 0 or missing; the loss "
        f"depends on it, as a replay with other values shows, but only through {place.operation}, whose result has no "
        "gradient",
        remedy="give it a way with a gradient (a straight-through estimate, the soft value as a weight, a loss of its "
        "own), or take it out of the optimizer",
    )
