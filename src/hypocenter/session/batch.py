"""The batch of a micro-batch: the tensors that its model and its loss code were given, read off the tape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hypocenter.session.batch_readings import AT_MOST, BRIEF, WHOLE
from hypocenter.tap.tape import PLACEHOLDERS, Event, version_of
from hypocenter.tap.tree import tensors


def given_to_model(event: Event, *, is_full: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (argument, tensor, values to digest) of a module's inputs but those that have been changed in place since.

    Args:
        is_full: of tensors of floats up to WHOLE elements, else BRIEF.
    """
    versions = {id(e.tensor): e.version for e in event.externals}
    named = [(f"in[{i}]", arg) for i, arg in enumerate(event.args)] + list(event.kwargs.items())
    given = [(f"{name}{suffix}", t) for name, value in named for suffix, t in tensors(value)]
    for name, tensor in given[:AT_MOST]:
        is_input = PLACEHOLDERS.number(tensor) is None and not isinstance(tensor, torch.nn.Parameter)
        if not is_input or versions.get(id(tensor), version_of(tensor)) != version_of(tensor):
            continue
        values = _looked_at(tensor, WHOLE if is_full else BRIEF)
        if values is not None:
            yield name, tensor, values


def given_to_loss_code(events: Sequence[Event], known: set[int]) -> list[tuple[str, Tensor, Tensor]]:
    """Find the integer tensors (labels) that code after the model used first; they are called `loss[n]` in order."""
    found: list[tuple[str, Tensor, Tensor]] = []
    for event in events:
        for external in event.externals if event.module is None else ():
            tensor = external.tensor
            if id(tensor) in known or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                continue
            known.add(id(tensor))
            values = _looked_at(tensor, WHOLE) if external.version == version_of(tensor) else None
            if values is not None and tensor.numel() > 1 and len(found) < AT_MOST:
                found.append((f"loss[{len(found)}]", tensor, values))
    return found


def _looked_at(tensor: Tensor, whole: int) -> Tensor | None:
    """Return the values to digest: all, or every n-th of many floats; None for a shard, which is this rank's alone."""
    if hasattr(tensor, "to_local") or tensor.layout != torch.strided:
        return None
    if tensor.numel() <= whole or not tensor.is_floating_point():
        return tensor
    return tensor.reshape(-1)[:: -(-tensor.numel() // whole)].contiguous() if tensor.is_contiguous() else None
