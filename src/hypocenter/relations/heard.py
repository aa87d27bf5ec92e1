"""What the calls of modules were given and gave in one forward, in the order in which it happened."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.nouns import Source
from hypocenter.tap.own_frame import RAISED, OwnFrame
from hypocenter.tap.source import source_of, user_frame
from hypocenter.tap.tree import flatten

ELEMENTS = 1 << 20  # of a tensor that is kept; of a larger one every n-th of its last dimension
MOST_CALLS = 20_000
BUDGET_BYTES = 1 << 30
_AT_MOST = 16  # tensors of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A module is called, or returns.

    Attributes:
        is_end: it returns.
        module: name and class of it.
        around: name and class of the module whose own code has called it; ("", "") at the outermost.
        source: the line that called it.
        values: what it was given, or gave, by port; copies.
    """

    is_end: bool
    module: tuple[str, str]
    around: tuple[str, str]
    source: Source | None
    values: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


class Heard:
    """Hear the calls of modules during a forward.

    Args:
        name: of a module; None: it has none.
        keeps: all values, beside the last outputs of some size, by reference.
    """

    def __init__(self, name: Callable[[nn.Module], str | None], *, keeps: bool) -> None:
        self.calls: list[Call] = []
        self.last: dict[tuple[str, int], Tensor] = {}  # outputs by module and call, the last few
        self._name, self._keeps = name, keeps
        self._open: list[tuple[str, str]] = []
        self._n = Counter[str]()
        self._n_bytes = 0

    @contextlib.contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Hear the calls that are made inside this block."""
        calls = OwnFrame(nn.Module._wrapped_call_impl, self._begin)
        calls.listen()
        try:
            yield
        finally:
            calls.stop()

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> Callable[[Any], None]:
        around = self._open[-1] if self._open else ("", "")
        name = self._name(module)
        me = (around[0] if name is None else name, type(module).__name__)
        source = self._note(False, me, around, (args, kwargs))
        self._open.append(me)

        def end(output: Any) -> None:
            if self._open:
                self._open.pop()
            if output is not RAISED:
                self._note(True, me, around, output, source)
                self._remember(me[0], output)

        return end

    def _remember(self, name: str, output: Any) -> None:
        self._n[name] += 1
        tensor = output if isinstance(output, Tensor) else next((t for _, t in flatten(output)), None)
        if tensor is not None and tensor.is_floating_point() and tensor.dim() > 1 and tensor.requires_grad:
            self.last[name, self._n[name]] = tensor
            if len(self.last) > 8:
                del self.last[next(iter(self.last))]

    def _note(
        self, is_end: bool, me: tuple[str, str], around: tuple[str, str], value: Any, source: Source | None = None
    ) -> Source | None:
        if not self._keeps or len(self.calls) >= MOST_CALLS:
            return None
        if not is_end:
            frame = user_frame(sys._getframe(2))
            code = frame.f_code if frame is not None else None
            source = source_of(code.co_filename, frame.f_lineno, code.co_name) if frame and code else None
        with torch.no_grad():
            found = flatten(value) if not isinstance(value, Tensor) else [("", value)]
            values = {port: kept for port, t in found[:_AT_MOST] if (kept := self._kept(t)) is not None}
        self.calls.append(Call(is_end=is_end, module=me, around=around, source=source, values=values))
        return source

    def _kept(self, tensor: Tensor) -> Tensor | None:
        if not tensor.is_floating_point() or isinstance(tensor, nn.Parameter) or tensor.layout != torch.strided:
            return None
        values = tensor.detach()
        if hasattr(values, "to_local") or self._n_bytes > BUDGET_BYTES:
            return None
        if values.numel() > ELEMENTS and values.dim() > 1:
            values = values[..., :: -(-values.numel() // ELEMENTS)]
        kept = values.to("cpu", copy=True)
        self._n_bytes += kept.nbytes
        return kept
