"""Level `modules` under torch.compile: statistics of forward outputs, written by the compiled graph itself.

A forward hook on each matrix-multiplying module is traced into the graph and folds nine numbers of its output into a
preallocated slot: no graph break, no recompile, no wait. It is done on a CPU only, and of float32 outputs of matrix
products and convolutions: inductor stores those in memory anyway, so that one more reader changes no bit of the run.
Whatever it would have fused away (a norm, an activation, a softmax; in bfloat16 also the surroundings of a product)
comes out with other bits when it is read: of a two-block transformer 103 to 105 of 105 losses and gradients changed
(torch 2.13, CPU). On a GPU the order of kernels changes as well, and with it the random numbers that each draws: none
of 11 losses stayed (torch 2.11, H200). What goes into a compiled region and comes out of it, with its gradients, is
read outside the graph by ModuleTap, in any dtype. `compiled_backward` opts in to reading every module, forward and
backward, at the price of those bits.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading, Summary
from hypocenter.tap.clock import Clock
from hypocenter.tap.compile_guard import is_export, never_compile
from hypocenter.tap.names import NameMap, class_name, unwrap, wrapped_attribute
from hypocenter.tap.own_frame import RAISED, OwnFrame, hear
from hypocenter.tap.wanted import is_wanted
from hypocenter.tap.weakly import Ref

_MATRIX_PRODUCTS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_MATRIX_FORWARDS = frozenset(kind.forward for kind in _MATRIX_PRODUCTS)
_ALSO = frozenset({("transformers.pytorch_utils", "Conv1D")})  # GPT-2's: one addmm and a view
_AUTOTUNE = ("max_autotune", "max_autotune_gemm")
_GRAPHS = ("triton.cudagraphs",)
N_SLOTS = 1024  # per block; a block is 64 KiB
_N_SUMS, _N_PEAKS = 6, 3  # finite, NaN, +inf, -inf, sum, sum of squares; max, -min, dtype
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
)  # told by position: a graph can hold numbers only
FULL_PRECISION = _DTYPES[:2]


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
        """Watch for compiled modules; returns the undo, which takes all hooks away (and makes torch compile again)."""
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
        """Set hooks in every compiled region of `root`, which must not have run yet; return how many there are."""
        try:
            return sum(self._instrument_region(region) for region in list(root.modules()) if _is_compiled(region))
        except Exception as error:
            self._warn_once("failed", f"compiled modules are not read: {error!r}")
            return 0

    def collect(self, step: int) -> list[Reading]:
        """Return one reading per hooked module for all it did since the last call. Waits once per device."""
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
        if not backward and _is_set(region, _AUTOTUNE):
            self._warn_once("autotune", "a module compiled with max-autotune is not read: it would compute other bits")
            return 0
        if any(parameter.device.type != "cpu" for parameter in region.parameters()):
            if _is_set(region, _GRAPHS):
                self._warn_once("graphs", "a compiled module that is replayed from a graph is not read inside")
                return 0
            if not backward:
                self._warn_once(
                    "device",
                    "nothing inside the compiled modules is read on a device: random numbers and the order of sums "
                    "would be others (compiled_backward=True reads all the same)",
                )
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
            self._places[slot.index] = (Ref(module), phase)
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


def _is_set(region: nn.Module, keys: tuple[str, ...]) -> bool:
    """Return whether one of these settings of inductor holds for a compiled region.

    With autotuned templates what follows a product is computed in the same kernel, and its result is not stored. A
    graph that writes to a slot of ours ended in an illegal memory access (torch 2.11, H200).
    """
    context = getattr(region, "dynamo_ctx", None)
    settings: Any = getattr(context, "compiler_config", None) or {}
    ask = getattr(getattr(region, "_compiled_call_impl", None), "get_compiler_config", None)
    if callable(ask):
        settings = ask() or settings
    inductor: Any = sys.modules.get("torch._inductor.config")
    return any(settings.get(key, False) or _of_all(inductor, key) for key in keys)


def _of_all(inductor: Any, key: str) -> bool:
    for part in key.split("."):
        inductor = getattr(inductor, part, False)
    return bool(inductor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Two vectors, each with a version counter of its own (`.data`): else any graph break would make backward fail."""

    index: int
    sums: Tensor
    peaks: Tensor


class Slots:
    """Hands out slots, and reads all of them in one transfer per device."""

    def __init__(self) -> None:
        self._blocks: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        self._slots: list[Slot] = []
        self._positions: list[tuple[torch.device, int, int]] = []

    def take(self, device: torch.device) -> Slot:
        """Return a fresh slot on the device."""
        dtype = torch.float32 if device.type == "mps" else torch.float64  # the one device without float64
        blocks = self._blocks.setdefault(device, [])
        used = sum(position[0] == device for position in self._positions)
        if used == N_SLOTS * len(blocks):
            blocks.append(
                (
                    torch.zeros(N_SLOTS, _N_SUMS, dtype=dtype, device=device),
                    torch.full((N_SLOTS, _N_PEAKS), -math.inf, dtype=dtype, device=device),
                )
            )
        block, row = used // N_SLOTS, used % N_SLOTS
        sums, peaks = blocks[block]
        slot = Slot(index=len(self._slots), sums=sums.data[row], peaks=peaks.data[row])
        for vector in (slot.sums, slot.peaks):
            torch._dynamo.mark_static_address(vector)  # else CUDA graphs are given up for a graph that writes to it
        self._slots.append(slot)
        self._positions.append((device, block, row))
        return slot

    def drain(self) -> dict[int, tuple[torch.dtype, Summary]]:
        """Return index -> (dtype, Summary) of the slots written to since the last call, and clear them."""
        found: dict[int, tuple[torch.dtype, Summary]] = {}
        with torch.no_grad():
            hosts = {
                device: [torch.cat(block, dim=1).tolist() for block in blocks]
                for device, blocks in self._blocks.items()
            }
            for blocks in self._blocks.values():
                for sums, peaks in blocks:
                    sums.zero_()
                    peaks.fill_(-math.inf)
        for index, (device, block, row) in enumerate(self._positions):
            *numbers, code = hosts[device][block][row]
            summary = _summary(numbers)
            if summary.n:
                found[index] = (_DTYPES[int(code)], summary)
        return found


def _summary(numbers: list[float]) -> Summary:
    n_finite, n_nan, n_posinf, n_neginf, total, squares, largest, negated_smallest = numbers
    has_any = n_finite > 0
    absmax = max(largest, negated_smallest) if has_any else 0.0
    return Summary(
        n=int(n_finite + n_nan + n_posinf + n_neginf),
        n_nan=int(n_nan),
        n_posinf=int(n_posinf),
        n_neginf=int(n_neginf),
        min=-negated_smallest if has_any else None,
        max=largest if has_any else None,
        absmax=absmax,
        sum=total if math.isfinite(total) else 0.0,
        sumsq=squares if math.isfinite(squares) else n_finite * absmax * absmax,  # beyond float32: an upper bound
    )


def fold(tensor: Tensor, sums: Tensor, peaks: Tensor) -> None:
    """Merge a tensor's statistics into a slot, with tensor operators only.

    Widened first: a reduction of bfloat16 made inductor give up vector code for its neighbours, and other bits.
    """
    wide = tensor.detach()
    wide = wide if wide.dtype == torch.float64 else wide.to(torch.float32)
    finite = torch.isfinite(wide)
    values = torch.where(finite, wide, 0.0)
    sums.add_(
        torch.stack(
            [
                finite.sum().to(sums.dtype),
                torch.isnan(wide).sum().to(sums.dtype),
                (wide == math.inf).sum().to(sums.dtype),
                (wide == -math.inf).sum().to(sums.dtype),
                values.sum().to(sums.dtype),
                (values * values).sum().to(sums.dtype),
            ]
        )
    )
    largest = torch.where(finite, wide, -math.inf).amax().to(peaks.dtype)
    negated_smallest = torch.where(finite, -wide, -math.inf).amax().to(peaks.dtype)
    code = torch.full_like(largest, float(_DTYPES.index(tensor.dtype)))
    peaks.copy_(torch.maximum(peaks, torch.stack([largest, negated_smallest, code])))


def can_fold(tensor: Tensor, sums: Tensor) -> bool:
    """Return whether `fold` takes this tensor into a slot with these sums. Asked while tracing: reads no values."""
    return tensor.dtype in _DTYPES and tensor.device == sums.device and tensor.numel() > 0


@torch.library.custom_op("hypocenter::note", mutates_args={"sums", "peaks"})
def _note(tensor: Tensor, sums: Tensor, peaks: Tensor) -> None:
    fold(tensor, sums, peaks)


@_note.register_fake
def _(tensor: Tensor, sums: Tensor, peaks: Tensor) -> None:
    return None


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, sums, peaks, grad_sums, grad_peaks):  # type: ignore[no-untyped-def, override]
        ctx.slots = (grad_sums, grad_peaks)
        torch.ops.hypocenter.note(tensor.detach(), sums, peaks)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        torch.ops.hypocenter.note(grad, *ctx.slots)
        return grad, None, None, None, None


def fold_through(tensor: Tensor, sums: Tensor, peaks: Tensor, grad_sums: Tensor, grad_peaks: Tensor) -> Tensor:
    """Return the tensor as a view; its statistics, and later its gradient's, are folded into two slots."""
    return _Through.apply(tensor, sums, peaks, grad_sums, grad_peaks)  # type: ignore[no-any-return]
