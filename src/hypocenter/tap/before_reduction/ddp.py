"""DistributedDataParallel: local gradients at the end of backward, before the reduced buckets are copied back.

`gradient_as_bucket_view` makes the gradients views of the buckets, which are reduced in place during backward. There
a hook on each parameter, which runs before DDP's own, reads them: at once where the gradient is such a view already,
else several together, since the tensor that DDP copies into the bucket stays what it is.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hypocenter.tap.before_reduction import Local, Tell
from hypocenter.tap.weakly import Ref

_HELD_BYTES = 16 << 20  # of gradients that are kept alive to be looked at together


class DdpLocals:
    """Looks at the local gradients of all DDP modules of a program.

    Args:
        tell: given them once a backward that ends in a reduction.
        fail: given what went wrong in a hook; nothing more is told then.
    """

    def __init__(self, tell: Tell, fail: Callable[[Exception], None]) -> None:
        self._tell, self._fail = tell, fail
        self._modules: list[weakref.ref[DistributedDataParallel]] = []
        self._hooked: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}
        self._roots: list[Any] = []
        self._held: list[Local] = []
        self._held_bytes = 0
        self._is_queued = False
        self.is_on = True

    def look(self, roots: Iterable[nn.Module]) -> None:
        """Find the DDP modules in these models; to be called when the models have changed."""
        found = [m for root in roots for m in root.modules() if isinstance(m, DistributedDataParallel)]
        self._modules = [Ref(m) for m in found]
        for module in found:
            if module.gradient_as_bucket_view and id(module) not in self._hooked:
                handles = [p.register_post_accumulate_grad_hook(self._on_view) for p in reduced_by(module)]
                self._hooked[id(module)] = Ref(module), handles

    def modules(self) -> list[DistributedDataParallel]:
        """Return the DDP modules that are alive."""
        return [module for ref in self._modules if (module := ref()) is not None]

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Queue a look at the end of the backward that begins at these roots."""
        self._is_queued = False
        self._held, self._held_bytes = [], 0
        if not self.is_on or not any(m.require_backward_grad_sync for m in self.modules()) or _compiled_autograd():
            return
        self._roots = [r.register_hook(self._begun) for r in roots if r.requires_grad and not r.is_leaf]

    def after_backward(self) -> None:
        """Take the hooks off the roots, and forget the gradients that were held: backward is over."""
        for handle in self._roots:
            handle.remove()
        self._roots = []
        self._held, self._held_bytes = [], 0

    def detach(self) -> None:
        """Take all hooks off."""
        self.is_on = False
        self.after_backward()
        for _, handles in self._hooked.values():
            for handle in handles:
                handle.remove()
        self._hooked.clear()

    def _begun(self, _: torch.Tensor) -> None:
        if not self._is_queued and self.is_on:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)  # type: ignore[attr-defined]

    def _ended(self) -> None:
        if not self.is_on:
            return
        try:
            plain = [
                Local(p, p.grad)
                for module in self.modules()
                if module.require_backward_grad_sync and not module.gradient_as_bucket_view
                for p in reduced_by(module)
                if p.grad is not None
            ]
            if plain or self._held:
                self._tell([*plain, *self._held])
        except Exception as error:
            self._give_up(error)
        finally:
            self._held, self._held_bytes = [], 0

    def _on_view(self, parameter: torch.Tensor) -> None:
        if not self.is_on or parameter.grad is None or not self._is_queued:
            return
        try:
            gradient = parameter.grad
            if gradient.untyped_storage().nbytes() > gradient.numel() * gradient.element_size():
                self._tell([Local(parameter, gradient)])  # a part of a bucket: it may be reduced the moment we return
                return
            self._held.append(Local(parameter, gradient))
            self._held_bytes += gradient.numel() * gradient.element_size()
            if self._held_bytes > _HELD_BYTES:
                self._tell(self._held)
                self._held, self._held_bytes = [], 0
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.is_on = False
        self._fail(error)


def reduced_by(module: DistributedDataParallel) -> list[nn.Parameter]:
    """Return the parameters that DDP reduces (it may be told to leave some), from its own list, made once."""
    own = cast("list[nn.Parameter] | None", getattr(module, "_module_parameters", None))
    if own is None:  # another version of torch
        ignored = cast("set[str]", getattr(module, "parameters_to_ignore", ()))
        own = [parameter for name, parameter in module.module.named_parameters() if name not in ignored]
    return [parameter for parameter in own if parameter.requires_grad]


def is_plain_mean(module: DistributedDataParallel) -> bool:
    """Return whether the reduced gradient is the mean of the local ones in their own format, and nothing else."""
    is_uneven = getattr(getattr(module, "_join_config", None), "enable", False)
    has_hook = bool(getattr(module, "_comm_hooks", ())) or getattr(module, "mixed_precision", None) is not None
    return not (is_uneven or has_hook or getattr(module, "_delay_all_reduce_params", ()))


def hooks_of(roots: Iterable[nn.Module]) -> dict[int, str]:
    """Return, by a parameter's id, the name of the function that the program registered to reduce it for DDP."""
    found: dict[int, str] = {}
    for module in (each for root in roots for each in root.modules() if isinstance(each, DistributedDataParallel)):
        for hook, _ in cast("Sequence[tuple[Any, Any]]", getattr(module, "_comm_hooks", ())):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            found.update((id(parameter), name) for parameter in reduced_by(module))
    return found


def _compiled_autograd() -> bool:
    """Return whether backward is traced; dynamo is not imported to find out."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))
