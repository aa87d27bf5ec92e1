"""The calls of loss functions, of arithmetic between two tensors and of autograd functions in one forward."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hypocenter.nouns import Source
from hypocenter.relations.subject import Subject
from hypocenter.relations.weights import Mixed, Weights
from hypocenter.replay.engine import Replayer
from hypocenter.tap.call_site import running_module
from hypocenter.tap.own_frame import CannotListen, OwnFrame
from hypocenter.tap.source import source_of, user_frame

_MOST = 64  # calls that are kept of each kind
LOSSES: Mapping[str, str] = {
    "cross_entropy": "cross_entropy", "cross_entropy_loss": "cross_entropy", "nll_loss": "nll_loss",
    "nll_loss_nd": "nll_loss", "kl_div": "kl_div", "ctc_loss": "ctc_loss",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}  # fmt: skip
"""Names of loss functions in torch.nn.functional and below it, with the name by which a user knows each."""
_LOG_TARGET = 5  # its place among the arguments of torch.nn.functional.kl_div
_OF_CTC = ((3, "target_lengths", None), (4, "blank", 0))  # arguments of torch.nn.functional.ctc_loss
BETWEEN_TWO = frozenset({
    "add", "sub", "mul", "div", "__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__", "__rmul__",
    "subtract", "multiply", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "broadcast_tensors",
})  # fmt: skip
"""What is computed element by element from two tensors. Outside of modules losses of torch are heard as what they call:
the last of these, and then themselves with two tensors of one shape."""
_IN_WORDS: Mapping[str, str] = {**LOSSES, "broadcast_tensors": "arithmetic"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """One call of a loss function, or of arithmetic between two tensors.

    Attributes:
        name: of the function.
        input: scores, or log-probabilities; of arithmetic the first of the two.
        target: what they are compared with.
        has_log_target: the target is said to be logarithms.
        module: the innermost one whose code has called it; None outside of any.
        source: the line.
        lengths, blank: of ctc_loss: how many labels each target has, and which class is none.
    """

    name: str
    input: Tensor
    target: Tensor
    has_log_target: bool
    module: nn.Module | None
    source: Source | None
    lengths: Any = None
    blank: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """One call of a `torch.autograd.Function` that is not torch's own.

    Attributes:
        function: the class.
        args: as they were given.
        module: as for LossCall.
        source: the line.
    """

    function: type[torch.autograd.Function]
    args: tuple[Any, ...]
    module: nn.Module | None
    source: Source | None


class Called(TorchFunctionMode):
    """Keep calls of loss functions, element-wise arithmetic and the program's own autograd functions, by reference.

    Args:
        subject: whose forward it is.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        self._is_on = False
        self.losses: list[LossCall] = []
        self.pairs: list[LossCall] = []
        self.mixed: list[tuple[Mixed, nn.Module | None, Source | None]] = []
        self._weights = Weights()
        self.functions: dict[type[torch.autograd.Function], FunctionCall] = {}  # the first call of each class

    @contextlib.contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Note the calls that are made inside this block."""
        frame = None
        with contextlib.suppress(CannotListen, KeyError, AttributeError):
            frame = OwnFrame(vars(torch.autograd.Function)["apply"].__func__, self._begin)
            frame.listen()
        self._is_on = True
        try:
            with self:
                yield
        finally:
            self.stop()
            if frame is not None:
                frame.stop()

    def stop(self) -> None:
        """Stop noting: what is called from here on does not belong to the program."""
        self._is_on = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._is_on:
            name = getattr(func, "__name__", "")
            if name in LOSSES or name in BETWEEN_TWO:
                self._note(name, args, kwargs)
            mixed = self._weights.hear(name, args, kwargs, result)
            if mixed is not None and len(self.mixed) < _MOST:
                self.mixed.append((mixed, *called_at(self._subject, sys._getframe(1))))
        return result

    def _note(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        args = (*args[0], *args[1:]) if args and isinstance(args[0], tuple) else args  # of broadcast_tensors
        first, second = (args[at] if len(args) > at else kwargs.get(key) for at, key in enumerate(("input", "target")))
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            return
        found = self.losses if name in LOSSES else self.pairs
        if len(found) < _MOST and (name in LOSSES or _meet_crosswise(first, second)):
            module, source = called_at(self._subject, sys._getframe(2))
            has_logs = kwargs.get("log_target", name == "kl_div" and len(args) > _LOG_TARGET and args[_LOG_TARGET])
            lengths, blank = (
                (args[at] if len(args) > at else kwargs.get(key, none) for at, key, none in _OF_CTC)
                if name == "ctc_loss"
                else (None, None)
            )
            found.append(LossCall(
                name=_IN_WORDS.get(name, name.strip("_")), input=first, target=second, has_log_target=bool(has_logs),
                module=module, source=source, lengths=lengths, blank=blank,
            ))  # fmt: skip

    def _begin(self, function: Any, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if self._is_on and not function.__module__.startswith("torch.") and function not in self.functions:
            module, source = called_at(self._subject, sys._getframe(1))
            call = FunctionCall(function=function, args=args, module=module, source=source)
            if len(self.functions) < _MOST:
                self.functions[function] = call


def called_at(subject: Subject, frame: Any) -> tuple[nn.Module | None, Source | None]:
    """Return the module and the line of the program from which the call in this frame was made; None where unknown."""
    own = user_frame(frame, Replayer._do.__code__)
    event = subject.running
    if own is not None:
        return running_module(frame), _line(own.f_code, own.f_lineno)
    if event is None:
        return None, None
    return event.module, _line(event.code, event.line)


def _line(code: CodeType | None, line: int) -> Source | None:
    return None if code is None else source_of(code.co_filename, line, code.co_name)


def _meet_crosswise(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of different numbers of dimensions both grow when they are broadcast together."""
    if a.dim() == b.dim() or not a.dim() or not b.dim():
        return False
    try:
        n = torch.broadcast_shapes(a.shape, b.shape).numel()
    except RuntimeError:
        return False
    return n > max(a.numel(), b.numel())
