"""Where a replay's backward may write: buffers and parameters of its own, so that nothing is added to the run's.

Fused kernels (Megatron-Core, Transformer Engine) add a weight's gradient to its `main_grad` inside of backward. They
give autograd a dummy with nothing in it, and set `grad_added_to_main_grad`. In a replay they find zeros there, and what
they have added is the gradient. A parameter of which the run's backward has not said so has no `main_grad` in a replay:
who reads it all the same raises AttributeError before anything is written.

Under reentrant checkpointing gradients must be accumulated, which wrappers (DDP, Megatron's) hear of at the node that
accumulates: out of sight and out of reach. There other parameters stand for those of the modules, with the same values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.whole.model import hold

BUFFER, FLAG = "main_grad", "grad_added_to_main_grad"


class OwnBuffers:
    """Put zeros in place of `main_grad` during a replay.

    Attributes:
        has_hidden: whether parameters are without one.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], *, for_all: bool) -> None:
        """Prepare; nothing is changed yet.

        Args:
            for_all: also for parameters of which the run's backward has not said that it adds there itself.
        """
        held = [p for p in {id(p): p for p in parameters}.values() if getattr(p, BUFFER, None) is not None]
        self._own = [p for p in held if for_all or getattr(p, FLAG, True)]
        self._hidden = [p for p in held if not (for_all or getattr(p, FLAG, True))]
        self._of: dict[int, torch.Tensor] = {}
        self.has_hidden = bool(self._hidden)

    @contextlib.contextmanager
    def in_place(self) -> Generator[None, None, None]:
        """Put the run's buffers out of reach in this block; afterwards all is as it was.

        Raises:
            ReplayImpossible: a framework keeps them in its own way.
        """
        with contextlib.ExitStack() as undo:
            for p in (*self._own, *self._hidden):
                if why := _why_not(p):
                    raise ReplayImpossible(why)
                undo.callback(_put_back, vars(p), {key: vars(p)[key] for key in (BUFFER, FLAG) if key in vars(p)})
                if FLAG in vars(p):
                    vars(p)[FLAG] = False
            for p in self._hidden:
                del vars(p)[BUFFER]
            for p in self._own:
                vars(p)[BUFFER] = self._of[id(p)] = torch.zeros_like(vars(p)[BUFFER])
            yield

    def gradients(
        self,
        parameters: Sequence[torch.Tensor],
        computed_with: Sequence[torch.Tensor],
        given: list[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """Return what backward has computed for each parameter, or None.

        Args:
            computed_with: the parameters, or what stood for them.
            given: what autograd gives.
        """
        if not self._of:
            return given
        return [self._gradient(*each) for each in zip(parameters, computed_with, given, strict=True)]

    def _gradient(
        self, parameter: torch.Tensor, computed_with: torch.Tensor, given: torch.Tensor | None
    ) -> torch.Tensor | None:
        added = self._of.get(id(parameter))
        if added is None:
            return given
        with _disable_current_modes():
            is_added = bool(added.count_nonzero())
            if FLAG not in vars(computed_with):  # then the kernel gives no gradient
                return added if is_added and given is None else given
            if not vars(computed_with)[FLAG]:
                return given
            if given is not None and getattr(parameter, "zero_out_wgrad", False):  # used in other ways too
                return added + given
            return added if is_added else None  # None: the schedule computes it later


def _why_not(parameter: torch.Tensor) -> str:
    if BUFFER not in vars(parameter) or hasattr(parameter, "get_main_grad"):
        return "a framework keeps main_grad in its own way (Megatron-FSDP): a replay would add to it"
    if getattr(parameter, "skip_backward_post_hook", False):
        return "gradients of weights are computed later than backward (delay_wgrad_compute): a replay would add to them"
    return ""


def _put_back(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    for key in (BUFFER, FLAG):
        attributes.pop(key, None)
    attributes.update(before)


class OwnParameters:
    """Parameters that stand for those of modules: the same values, and no graph node that anybody else knows."""

    def __init__(self, holders: Sequence[torch.nn.Module]) -> None:
        self._held = [
            (module, key, p)
            for module in holders if not isinstance(module, torch.jit.ScriptModule)
            for key, p in module._parameters.items() if p is not None and _can_be_replaced(p)
        ]  # fmt: skip
        self._recurrent = [module for module in holders if isinstance(module, torch.nn.RNNBase)]
        self._of: dict[int, torch.nn.Parameter] = {}

    @contextlib.contextmanager
    def in_place(self) -> Generator[None, None, None]:
        """Let the modules hold these in this block; afterwards the run's own again."""
        for _, _, p in self._held:
            if id(p) not in self._of:
                stand_in = self._of[id(p)] = torch.nn.Parameter(p.detach(), requires_grad=p.requires_grad)
                vars(stand_in).update(vars(p))
                stand_in._backward_hooks = p._backward_hooks  # the program's own, which change gradients
        with contextlib.ExitStack() as undo:
            hold([(module, key, self._of[id(p)]) for module, key, p in self._held], undo)
            for module in self._recurrent:  # which keep their parameters in a list too
                undo.callback(setattr, module, "_flat_weights", module._flat_weights)
                module._flat_weights = [self._of.get(id(each), each) for each in module._flat_weights]
            yield

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for this tensor, or the tensor itself."""
        return self._of.get(id(tensor), tensor)

    def of_all(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return what stands for each of these."""
        return [self.of(tensor) for tensor in tensors] if self._of else tensors


def why_not(modules: Iterable[torch.nn.Module], parameters: Sequence[torch.Tensor]) -> str:
    """Return why whoever listens to parameters would hear of accumulated gradients; "" if nobody would."""
    is_all = all(_can_be_replaced(p) for p in parameters)
    is_all = is_all and not any(isinstance(m, torch.jit.ScriptModule) for root in modules for m in root.modules())
    return "" if is_all else "reentrant checkpointing hands gradients to the wrapper of the model"


def _can_be_replaced(parameter: torch.Tensor) -> bool:
    return type(parameter) is torch.nn.Parameter
