"""Level `modules` under torch.compile: statistics of forward outputs, written by the compiled graph itself.

A forward hook on each matrix-multiplying module is traced into the graph and folds nine numbers of its output into a
preallocated slot: no graph break, no recompile, no wait. Only float32 outputs of matrix products and convolutions are
read: inductor stores those in memory anyway, so that one more reader changes no bit of the run. Whatever it would have
fused away (a norm, an activation, a softmax; in bfloat16 also the surroundings of a product) comes out with other bits
when it is read: of a two-block transformer 103 to 105 of 105 losses and gradients changed (torch 2.13, CPU). What goes
into a compiled region and comes out of it, with its gradients, is read outside the graph by ModuleTap, in any dtype.
`compiled_backward` opts in to reading every module, forward and backward, at the price of those bits.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.compile_guard import is_export, never_compile
from hypocenter.tap.names import NameMap, class_name, unwrap, wrapped_attribute
from hypocenter.tap.own_frame import RAISED, OwnFrame, hear
from hypocenter.tap.slots import FULL_PRECISION, Slots, can_fold, fold, fold_through
from hypocenter.tap.wanted import is_wanted

_MATRIX_PRODUCTS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_MATRIX_FORWARDS = frozenset(kind.forward for kind in _MATRIX_PRODUCTS)
_ALSO = frozenset({("transformers.pytorch_utils", "Conv1D")})  # GPT-2's: one addmm and a view
_AUTOTUNE = ("max_autotune", "max_autotune_gemm")


class CompiledTap:
    """Finds compiled modules before their first run, sets the hooks, and reads the slots once a step."""

    def __init__(self, names: NameMap, clock: Clock, config: Config, warn: Callable[[str], None]) -> None:
        self._names, self._clock, self._config, self._warn = names, clock, config, warn
        self._slots = Slots()
        self._places: dict[int, tuple[weakref.ref[nn.Module], Phase]] = {}  # slot -> what it is of
        self._done: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._handles: list[Any] = []
        self._warned: set[str] = set()
        self._n_calls = 0  # training calls of compiled modules since the last collect

    def attach(self) -> Callable[[], None]:
        """Watch for compiled modules; call the result to take all hooks away (which makes torch compile once more)."""
        never_compile(CompiledTap._begin)
        calls = OwnFrame(nn.Module._wrapped_call_impl, self._begin)
        calls.listen()
        no_longer = hear(nn.Module, "compile", self._on_compile)
        for root in self._names.roots():
            self.instrument(root)

        def undo() -> None:
            calls.stop()
            no_longer()
            for hook in self._handles:
                hook.remove()

        return undo

    def instrument(self, root: nn.Module) -> int:
        """Set hooks in every compiled region in `root`, which must not have run yet; the number of modules hooked."""
        try:
            return sum(self._instrument_region(region) for region in list(root.modules()) if _is_compiled(region))
        except Exception as error:
            self._warn_once("failed", f"compiled modules are not read: {error!r}")
            return 0

    def collect(self, step: int) -> list[Reading]:
        """One reading per hooked module for everything it did since the last call. Waits once per device."""
        n_calls, self._n_calls = self._n_calls, 0
        try:
            found = self._slots.drain()
        except Exception as error:
            self._warn_once("failed", f"compiled modules are not read: {error!r}")
            return []
        if n_calls and self._places and not found:
            self._warn_once(
                "late",
                "nothing inside the compiled modules is read: they ran before Hypocenter started, or compute in half "
                "precision, where reading would change bits (compiled_backward=True reads all the same)",
            )
        readings: list[Reading] = []
        for index, (dtype, summary) in found.items():
            ref, phase = self._places[index]
            module = ref()
            names = () if module is None else self._names.module_names(module)
            if module is not None and names:
                readings.append(
                    Reading(
                        step=step,
                        microbatch=0,
                        phase=phase,
                        site=names[0],
                        port="out[0]" if phase == "forward" else "grad_out[0]",
                        order=self._clock.next_order(),
                        dtype=str(dtype).removeprefix("torch."),
                        summary=summary,
                        module=class_name(module),
                        names=names if len(names) > 1 else (),
                    )
                )
        return readings

    def _on_compile(self, module: nn.Module, *_: Any) -> Callable[[Any], None]:
        def end(result: Any) -> None:
            if result is not RAISED:
                self.instrument(module)

        return end

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if type(module).__name__ == "OptimizedModule" and not is_export(module):
            if module not in self._done:
                self.instrument(module)
            self._n_calls += torch.is_grad_enabled()

    def _instrument_region(self, region: nn.Module) -> int:
        if region in self._done:
            return 0
        self._done.add(region)
        backward = self._config.compiled_backward
        if not backward and _is_autotuned(region):
            self._warn_once("autotune", "a module compiled with max-autotune is not read: it would compute other bits")
            return 0
        if backward:
            self._warn_once(
                "backward",
                "compiled_backward=True: every value in a compiled module is read, which changes the numerics of the "
                "compiled run (bf16 most: up to 0.7 % in gradients)",
            )
        return sum(self._hook(module, backward) for module in self._wanted(unwrap(region), everything=backward))

    def _wanted(self, region: nn.Module, everything: bool) -> Iterator[nn.Module]:
        for module in region.modules():
            names = self._names.module_names(module)
            if module in self._done and module is not region:
                continue  # a region of its own
            is_read = not wrapped_attribute(module) if everything else _is_matrix_product(module)
            if is_read and is_wanted(names or ("",), self._config):
                yield module

    def _hook(self, module: nn.Module, backward: bool) -> int:
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        slots = [self._slots.take(device) for _ in ("forward", "backward")[: 1 + backward]]
        for slot, phase in zip(slots, ("forward", "backward"), strict=False):
            self._places[slot.index] = (weakref.ref(module), phase)
        hook = _ProbeHook(*slots) if backward else _SlotHook(slots[0])
        self._handles.append(module.register_forward_hook(hook))
        return 1

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._warn(text)


class _Hook:
    """A hook that a pickled or copied model does not take along: there it is a do-nothing of the standard library."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _SlotHook(_Hook):
    def __init__(self, slot: Any) -> None:
        self.slot, self.sums, self.peaks = slot, slot.sums, slot.peaks

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        # Only tensor code: a python side effect in here would compile the model anew in every step.
        if not torch.compiler.is_compiling() or not torch.is_grad_enabled() or not isinstance(output, Tensor):
            return
        if output.dtype in FULL_PRECISION and can_fold(output, self.sums):
            fold(output, self.sums, self.peaks)


class _ProbeHook(_Hook):
    def __init__(self, forward: Any, backward: Any) -> None:
        self.slots = (forward.sums, forward.peaks, backward.sums, backward.peaks)
        self.forward, self.backward = forward, backward

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not torch.compiler.is_compiling() or not torch.is_grad_enabled() or not isinstance(output, Tensor):
            return None
        if can_fold(output, self.slots[0]):
            return fold_through(output, *self.slots)
        return None


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _is_matrix_product(module: nn.Module) -> bool:
    kind = type(module)
    return kind.forward in _MATRIX_FORWARDS or (kind.__module__, kind.__name__) in _ALSO


def _is_autotuned(region: nn.Module) -> bool:
    """With autotuned templates what follows a product is computed in the same kernel, and its result is not stored."""
    context = getattr(region, "dynamo_ctx", None)
    settings: Any = getattr(context, "compiler_config", None) or {}
    ask = getattr(getattr(region, "_compiled_call_impl", None), "get_compiler_config", None)
    if callable(ask):
        settings = ask() or settings
    inductor: Any = sys.modules.get("torch._inductor.config")
    return any(settings.get(key, False) or getattr(inductor, key, False) for key in _AUTOTUNE)
