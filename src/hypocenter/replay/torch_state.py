"""What torch's modules keep in Python, put back after a replay: see hypocenter.replay.python_state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hypocenter.replay import python_state
from hypocenter.replay.python_state import CONSTANTS, Kind, Undo


def kept(
    parts: Iterable[torch.nn.Module], on_leaving: Callable[[], None] = lambda: None, *, must_be_all: bool = False
) -> contextlib.AbstractContextManager[list[torch.Tensor]]:
    """Let modules of these parts be called in this block; after it what they keep in Python is as it was.

    Gives the tensors among it.

    Args:
        parts: the modules, and all that are inside them.
        on_leaving: called when the block is over and nothing is put back yet.
        must_be_all: not where something is met that cannot be put back: ReplayImpossible.
    """
    written = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]
    return python_state.kept(_TORCH, written, on_leaving=on_leaving, must_be_all=must_be_all)


def _copied(tensor: torch.Tensor) -> Undo | None:
    if tensor.layout is not torch.strided or tensor.requires_grad or tensor.is_inference():
        return None
    before = tensor.detach().clone()

    def undo() -> None:  # whatever its version counter says: kernels of extensions (FP8 scales) do not move that
        tensor.data.copy_(before)

    return undo


def _of_generator(value: Any) -> Undo | None:
    if not isinstance(value, torch.Generator):
        return None
    state = value.get_state()

    def undo() -> None:
        if not value.get_state().equal(state):
            value.set_state(state)

    return undo


_TORCH = Kind(
    own=frozenset(vars(torch.nn.Module())),
    forward="forward",
    hooks=("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    left_alone=(torch.nn.Module, torch.nn.Parameter),
    tensor=torch.Tensor,
    constants=CONSTANTS | {torch.dtype, torch.device, torch.Size},
    copied=_copied,
    generator=_of_generator,
)
