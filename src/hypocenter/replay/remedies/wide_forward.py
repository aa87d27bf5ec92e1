"""A module's forward in a wider floating-point format: arguments, parameters, buffers; autocast off inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from hypocenter.replay.remedies.casts import NARROWER, Caster, back
from hypocenter.replay.remedies.layer import Layer
from hypocenter.tap.state import accelerator_type

_before: list[Any] = []  # the user's setting, while a compilation with an island is under way


class WideForward(Layer):
    """Run the forward in `dtype`, whatever autocast and the parameters' own format say.

    Args:
        module: with all below it.
        dtype: float32, float64, or bfloat16 (which only replaces float16).
        cast_back: give the result the format that the inputs had (else that of the parameters); otherwise it stays in
            `dtype`, which lets a value above the narrow format's maximum live until a norm brings it back. None: only
            outside autocast, where the next module could not take another format than its parameters'.
        outermost: see `Layer`.
    """

    def __init__(
        self, module: nn.Module, *, dtype: torch.dtype, cast_back: bool | None, outermost: bool = True
    ) -> None:
        super().__init__(module, outermost=outermost)
        self.dtype = dtype
        self.cast_back = cast_back
        self.narrower = NARROWER[dtype]
        accelerator()  # before anything is compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled:
            return self.wrapped(*args, **kwargs)
        caster = Caster(self.dtype, self.narrower)
        if not self.outermost and not self._is_on_its_own(args, kwargs):
            return self.wrapped(*args, **kwargs)
        args, kwargs = caster.cast(args), caster.cast(kwargs)
        swap = Swap(self.module, self.dtype, self.narrower)
        try:
            swap.apply()
            result = autocast_off(self.dtype, self.wrapped, args, kwargs)
        finally:
            swap.undo()
        narrow = caster.first or swap.first
        casts_back = not is_autocast_on() if self.cast_back is None else self.cast_back
        if not self.outermost or not casts_back or narrow is None:
            return result
        return back(result, self.dtype, narrow)

    def _is_on_its_own(self, args: Any, kwargs: Any) -> bool:
        """Return whether the outer layer's casts do not reach here.

        In a checkpoint's recomputation, and where FSDP2 has put its own parameters in place. A module that is shared
        with the outside is also recomputed for that, but then from narrow arguments.
        """
        if hasattr(type(self.module), "set_requires_gradient_sync"):
            return True
        return in_recompute() and _is_wide(args, kwargs, self.narrower)


_accelerator: list[str] = [""]


def accelerator() -> str:
    """Return the accelerator's device type, or "". Asked until there is one: `npu` exists once torch_npu is imported.

    In a compiled graph it is what it was when last asked outside.
    """
    if not _accelerator[0] and not torch.compiler.is_compiling():
        _accelerator[0] = accelerator_type() or ""
    return _accelerator[0]


def is_autocast_on() -> bool:
    """Return whether autocast is on, on the CPU or the accelerator."""
    device = accelerator()
    return torch.is_autocast_enabled("cpu") or (bool(device) and torch.is_autocast_enabled(device))


def autocast_off(dtype: torch.dtype, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function without autocast; for bfloat16 with bfloat16's where some is on, so that it casts parameters."""
    kind = accelerator()
    cpu, device = torch.is_autocast_enabled("cpu"), bool(kind) and torch.is_autocast_enabled(kind)
    if not (cpu or device):
        return function(*args, **kwargs)
    if torch.compiler.is_compiling():
        trace_backward_without_autocast()
    stays = dtype == torch.bfloat16
    if not device:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=stays):
            return function(*args, **kwargs)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=cpu and stays),
        torch.autocast(kind, dtype=torch.bfloat16, enabled=stays),
    ):
        return function(*args, **kwargs)


def in_recompute() -> bool:
    """Return whether backward runs here, so that a forward is a recomputation. Never inside a compiled graph."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _is_wide(args: Any, kwargs: Any, narrower: tuple[torch.dtype, ...]) -> bool:
    """Return whether no floating argument has a narrow format: so an island's module calls those below it."""
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]
    return not any(tensor.dtype in narrower for tensor in given)


class Swap:
    """Put copies in `dtype` in place of a module tree's narrow tensors for a while.

    Parameters' gradients flow through the cast. What the forward did to a buffer (running statistics), or to a tensor
    that is a plain attribute (a cache), is brought back to the narrow original. Plain attributes also are the weights
    that old-style `weight_norm` and `spectral_norm`, and FSDP1, compute before the forward.
    """

    def __init__(self, root: nn.Module, dtype: torch.dtype, narrower: tuple[torch.dtype, ...]) -> None:
        self.root, self.dtype, self.narrower = root, dtype, narrower
        self.first: torch.dtype | None = None  # what the first swapped tensor had
        # table, key, original, copy, its version: -1 when that tells nothing (batch norm bumps none), None: not written
        self._swapped: list[tuple[Any, str, Tensor, Tensor, int | None]] = []
        self._lists: list[tuple[nn.Module, list[Any]]] = []

    def apply(self) -> None:
        """Put the copies in place of the originals."""
        for owner in self.root.modules():
            self._table(vars(owner), keeps_writes=True)
            self._table(owner._parameters, keeps_writes=False)
            self._table(owner._buffers, keeps_writes=True, always=isinstance(owner, _NormBase))
            if isinstance(owner, nn.RNNBase):
                self._lists.append((owner, owner._flat_weights))
                owner.__dict__["_flat_weights"] = [
                    w.to(self.dtype) if isinstance(w, Tensor) and w.dtype in self.narrower else w
                    for w in owner._flat_weights
                ]

    def undo(self) -> None:
        """Put the originals back, with what was written to the copies."""
        for table, key, original, copy, version in self._swapped:
            now = table.get(key)
            if version is not None and isinstance(now, Tensor) and now is not copy:  # the forward has put another there
                table[key] = now.to(original.dtype) if now.is_floating_point() else now
                continue
            if version is not None and (version < 0 or copy._version != version):
                with torch.no_grad():
                    original.copy_(copy)
            table[key] = original
        for owner, weights in self._lists:
            owner.__dict__["_flat_weights"] = weights

    def _table(self, table: Any, *, keeps_writes: bool, always: bool = False) -> None:
        for key, tensor in list(table.items()):
            if isinstance(tensor, Tensor) and tensor.dtype in self.narrower:
                self.first = self.first or tensor.dtype
                copy = tensor.to(self.dtype)
                unknown = always or torch.compiler.is_compiling() or copy.is_inference()
                version = None if not keeps_writes or tensor.requires_grad else -1 if unknown else copy._version
                self._swapped.append((table, key, tensor, copy, version))
                table[key] = copy


# AOTAutograd traces the backward of a graph under the autocast state that the graph was entered with
# (`torch._functorch.config.backward_pass_autocast = "same_as_forward"`), so the backward of a block that switched
# autocast off would run in low precision all the same. Eager backward runs without autocast, as torch's documentation
# asks. While a graph with an island in it is compiled, the setting is therefore "off", and afterwards what it was.
@torch.compiler.assume_constant_result
def trace_backward_without_autocast() -> bool:
    """Set the autocast of backward while torch.compile traces an island: once per tracing, in plain Python."""
    with contextlib.suppress(AttributeError, ImportError):  # a torch without this setting
        from torch._dynamo.callback import callback_handler
        from torch._functorch import config

        if config.backward_pass_autocast == "same_as_forward":
            if _restore not in callback_handler.end_callbacks:
                callback_handler.register_end_callback(_restore)
            _before.append(config.backward_pass_autocast)
            config.backward_pass_autocast = "off"
    return True


def _restore(*_: Any) -> None:
    if _before:
        from torch._functorch import config

        config.backward_pass_autocast = _before[0]
        _before.clear()
