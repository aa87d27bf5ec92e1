"""A rank's own gradients just before they are averaged or summed over ranks. Nothing here communicates or waits.

One file per way of reducing. What each of them sees (all by experiment, torch 2.13, gloo):

    ddp            one callback of the autograd engine, queued at the start of backward: it runs before DDP's own copies
                   the reduced buckets back, and `p.grad` is this rank's sum over its micro-batches, undivided. Holds
                   for accumulation under no_sync, static_graph, find_unused_parameters, communication hooks, and a
                   compiled DDP. With gradient_as_bucket_view the buckets *are* the gradients and are reduced in place
                   while backward runs: there a hook on each parameter sees them before. Not with compiled autograd.
    fsdp2          the unsharded gradients that go into `foreach_reduce` (a private name: without it nothing is seen,
                   which is said once)
    fsdp1          the parts of the flat parameter's gradient that go into `_reduce_grad`
    megatron       `main_grad` of a bucket group's parameters at `start_grad_sync`, before its scaling factor
    deepspeed      ZeRO 1 to 3: a bucket's gradients when it is reduced; each micro-batch apart where ZeRO reduces each
    by_hand        `all_reduce` of a `p.grad` or of a flat copy of all: the gradients at the first such call of a step
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from hypocenter.catalogue import Catalogue, having

Undo = Callable[[], None]


class Local(NamedTuple):
    """One parameter's gradient as it is on this rank alone."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    name: str = ""  # below `module`, where a framework knows the gradient by it: its parameter may be a flat one
    module: torch.nn.Module | None = None


Tell = Callable[[Sequence[Local]], None]
"""Given gradients that are only valid during the call. May raise: callers go on with the user's work first."""


class Adapter(Protocol):
    """A module of this folder that patches a framework."""

    needs: str

    def attach(self, tell: Tell, warn: Callable[[str], None]) -> Undo:
        """Patch the framework; returns the undo."""
        ...


FRAMEWORKS: Catalogue[Adapter] = Catalogue(__name__, entry=having("needs"))


class Adapters:
    """Attaches each adapter once its framework has been imported."""

    def __init__(self, tell: Tell, warn: Callable[[str], None]) -> None:
        self._tell, self._warn = tell, warn
        self._waiting = FRAMEWORKS.in_order()
        self._undos: list[Undo] = []

    def look(self) -> None:
        """Attach adapters whose framework is imported by now. Costs a few dictionary look-ups."""
        for adapter in [a for a in self._waiting if a.needs in sys.modules]:
            self._waiting.remove(adapter)
            try:
                self._undos.append(adapter.attach(self._tell, self._warn))
            except (ImportError, AttributeError) as error:  # another version of it
                self._warn(f"gradients before their reduction are not seen ({adapter.needs}): {error}")

    def detach(self) -> None:
        """Take all patches off."""
        for undo in reversed(self._undos):
            undo()
        self._undos.clear()


def around(owner: Any, name: str, before: Callable[..., None]) -> Undo:
    """Call `before` with the arguments of each call of `owner.name`; it has to catch its own errors.

    Raises:
        AttributeError: there is no such function in this version.
    """
    original = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            before(*args, **kwargs)
        return original(*args, **kwargs)

    wrapper.__name__ = name
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(owner, name, wrapper)

    def undo() -> None:
        if getattr(owner, name) is wrapper:
            setattr(owner, name, original)

    return undo
