"""Activation checkpointing: is what backward computes a second time what forward computed? For HC336.

A module called inside backward is being recomputed: such modules are known after their first recompute, and from
then on, at the steps that are looked at, the outputs of forward and of recompute are compared, in a sample. A program
without checkpointing pays nothing. Not looked at: modules called several times in a micro-batch, and compiled models.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.detect.microbatch_rows import GAP
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.accumulated_rows import recompute_rows
from hypocenter.session.observers.grid import wide_dtype
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.tap.weakly import Ref

ELEMENTS = 1024  # of an output
MOST_MODULES = 2048
DENSE = 8  # steps that are all looked at, from the first recompute on; then as often as replicas are
_N_NUMBERS = 5


@dataclass(slots=True)
class _Call:
    """The calls of one module in one micro-batch."""

    given: Tensor | None
    made: Tensor
    n_calls: int = 1
    numbers: Tensor | None = None  # squares of gap and size of output and input, zeros in one of them only


class Recompute(Observer):
    """Compares the outputs of forward and recompute of the first micro-batch of a step."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.replicas)
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._listening: list[Callable[[], None]] = []
        self._calls: dict[int, _Call] = {}  # by id of the module, in the order in which they ended in forward
        self._n_looked = 0
        self._deferred = Deferred(context.ride)

    def attach(self) -> Callable[[], None]:
        """Watch for modules that are called inside backward; the undo ends it."""
        listeners = self.context.recomputed
        listeners.append(self._recomputed)

        def undo() -> None:
            if self._recomputed in listeners:
                listeners.remove(self._recomputed)
            self._let_go()

        return undo

    def _recomputed(self, module: nn.Module) -> None:
        if id(module) not in self._known and len(self._known) < MOST_MODULES:
            self._known[id(module)] = Ref(module)

    def at_rest(self) -> Iterable[str]:
        """Where nothing is computed again there is nothing to compare."""
        return (
            ("after_backward", "before_update", "after_update") if not (self._known or self._deferred.waiting) else ()
        )

    def after_update(self, update: Update) -> None:
        """Listen to the next step, or to none."""
        if self._listening:
            self._let_go()
        if not self._known or not (self._n_looked < DENSE or self._due(update.step + 1)):
            return
        self._n_looked += 1
        if any(_is_compiled(root) for root in self.context.names.roots()):
            return
        self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
        modules = [module for ref in self._known.values() if (module := ref()) is not None]
        self._listening = [self.context.after_calls.add(module, self._heard) for module in modules]

    def _let_go(self) -> None:
        for stop in self._listening:
            stop()
        self._listening, self._calls = [], {}

    def _heard(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self.context.clock.recording or self.context.clock.microbatch or torch.compiler.is_compiling():
            return
        try:
            with torch.no_grad(), _disable_current_modes():
                self._note(module, args, output, is_again=torch._C._current_graph_task_id() != -1)
        except Exception as error:  # never the user's forward
            self._calls, self._known = {}, {}
            self.context.warn(f"comparing recomputed outputs failed: {error!r}")

    def _note(self, module: nn.Module, args: tuple[Any, ...], output: Any, *, is_again: bool) -> None:
        call = self._calls.get(id(module))
        if call is not None and not is_again:
            call.n_calls += 1
            return
        made, given = _sample_of(output), _sample_of(args)
        if made is None or not (made.is_floating_point()):
            return
        if not is_again:
            self._calls[id(module)] = _Call(
                made=made.clone(), given=given.clone() if given is not None and given.is_floating_point() else None
            )
        elif call is not None and call.n_calls == 1 and call.numbers is None and call.made.shape == made.shape:
            is_known = call.given is not None and given is not None and call.given.shape == given.shape
            outputs = _squares(call.made, made)
            inputs = _squares(call.given, given) if is_known else [torch.zeros_like(n) for n in outputs]  # type: ignore[arg-type]
            zeros = ((call.made == 0) != (made == 0)).sum().to(outputs[0].dtype)
            call.numbers = torch.stack([*outputs, *inputs, zeros])

    def after_backward(self) -> None:
        """Compare the outputs of forward and recompute of the first micro-batch, which are over."""
        calls, self._calls = self._calls, {}
        if self.context.clock.microbatch or not self._listening:
            return
        compared = [(key, call) for key, call in calls.items() if call.n_calls == 1 and call.numbers is not None]
        names = [(self._known[key](), call.made.numel()) for key, call in compared if key in self._known]
        if not names or len(names) != len(compared):
            return
        step, device = self.context.clock.step, compared[0][1].made.device
        numbers = torch.cat([call.numbers.to(device) for _, call in compared if call.numbers is not None])

        def read(host: Sequence[float]) -> None:
            for at, (module, n_elements) in enumerate(names):
                gap, size, gap_in, size_in, zeros = host[at * _N_NUMBERS : (at + 1) * _N_NUMBERS]
                if module is not None and size > 0 and gap > GAP**2 * size:
                    inputs = (gap_in / size_in) ** 0.5 if size_in > 0 else None
                    name, kind = self.context.names.module_name(module), type(module).__name__
                    self.rows += recompute_rows(
                        name or kind, kind, step, (gap / size) ** 0.5, inputs, (n_elements, round(zeros)),
                        self.context.clock.next_order,
                    )  # fmt: skip
                    return

        self._deferred.add(numbers, read)

    def before_update(self, update: Update) -> None:
        """Read the numbers that were on their way to the host."""
        if self._deferred.waiting:
            self._deferred.read()


def _sample_of(values: Any) -> Tensor | None:
    """Return a sample of the first tensor in an output or in arguments; None without one."""
    if isinstance(values, (tuple, list)):
        values = next((v for v in values if isinstance(v, Tensor)), None)
    elif not isinstance(values, Tensor):
        values = next((v for v in getattr(values, "values", tuple)() if isinstance(v, Tensor)), None)
    return sample(values.detach(), ELEMENTS) if isinstance(values, Tensor) else None


def _squares(first: Tensor, second: Tensor) -> list[Tensor]:
    """Return the squared norms of the difference and of the first."""
    wide = wide_dtype(first.device)
    first, second = first.to(wide), second.to(wide)
    return [(first - second).square().sum(), first.square().sum()]


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
