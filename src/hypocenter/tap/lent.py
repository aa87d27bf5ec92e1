"""Parameters and buffers that a module has for one call only: `torch.func.functional_call` lends them to it.

By the time of a replay the module has its own again; each call is done again with what it was lent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from types import FrameType

import torch
from torch.nn.utils import stateless

from hypocenter.tap.frame_variables import variables_of

_LENDER = stateless._functional_call.__code__
_FRAMES = 6  # between a call of the module and what hears of it


@dataclass(frozen=True, slots=True)
class Lent:
    """A tensor in the place of a module's own."""

    module: torch.nn.Module
    kind: str  # which of the module's dictionaries: _parameters or _buffers
    key: str
    tensor: torch.Tensor

    def of(self, made_of: Callable[[torch.Tensor], torch.Tensor]) -> Lent:
        """Return the same place with another tensor, made of this one."""
        return replace(self, tensor=made_of(self.tensor))


def lent_to(root: torch.nn.Module, frame: FrameType | None) -> list[Lent]:
    """Return the tensors that the module that is being called was lent; none without a lender.

    Args:
        root: that is called.
        frame: inside its call.
    """
    for _ in range(_FRAMES):
        if frame is None or frame.f_code is _LENDER:
            break
        frame = frame.f_back
    variables = variables_of(frame) if frame is not None and frame.f_code is _LENDER else {}
    if variables.get("module") is not root:
        return []
    given = {id(tensor) for tensor in variables["parameters_and_buffers"].values()}
    return [
        Lent(module, kind, key, tensor)
        for module in root.modules()
        for kind in ("_parameters", "_buffers")
        for key, tensor in getattr(module, kind).items()
        if id(tensor) in given
    ]


@contextlib.contextmanager
def lending(lent: Sequence[Lent]) -> Generator[None, None, None]:
    """Lend the modules these tensors inside the block."""
    own = [getattr(each.module, each.kind)[each.key] for each in lent]
    try:
        for each in lent:
            getattr(each.module, each.kind)[each.key] = each.tensor
        yield
    finally:
        for each, tensor in zip(lent, own, strict=True):
            getattr(each.module, each.kind)[each.key] = tensor
