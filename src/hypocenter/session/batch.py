"""The batch of a micro-batch: the tensors that its model and its loss code were given, read off the tape."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.session.batch_readings import AT_MOST, BRIEF, WHOLE
from hypocenter.tap.tape import PLACEHOLDERS, Event, Tape, version_of
from hypocenter.tap.tree import tensors


def first_call(tape: Tape, start: int, roots: Sequence[Tensor]) -> int | None:
    """Return the position of the call of a module with which the forward of a micro-batch begins; None: there is none.

    Args:
        start: of its events. What was made before the last update comes first, and counts only if a root needs it.
        roots: what backward begins with.
    """
    events = tape.events
    if start < tape.n_carried:
        slots = [slot for root in roots if (slot := tape.slot(root)) is not None]
        start = next((at for at, _ in tape.making(*slots) if start <= at < tape.n_carried), tape.n_carried)
    while start < len(events) and not isinstance(events[start].function, torch.nn.Module):
        start += 1
    return start if start < len(events) else None


def given_to_model(event: Event, *, is_full: bool) -> list[tuple[str, Tensor, Tensor]]:
    """Return (argument, tensor, values to digest) of a module's inputs but those that have been changed in place since.

    Args:
        is_full: of tensors of floats up to WHOLE elements, else BRIEF.
    """
    versions: dict[int, int] = {}
    for external in event.externals:
        versions[id(external.tensor)] = external.version
    named: list[tuple[str, object]] = []
    for i, arg in enumerate(event.args):  # a comprehension is a call, and this runs at each step
        named.append((f"in[{i}]", arg))
    given: list[tuple[str, Tensor]] = []
    for name, value in (*named, *event.kwargs.items()):
        if isinstance(value, Tensor):
            given.append((name, value))
        elif value is not None:
            given += [(f"{name}{suffix}", t) for suffix, t in tensors(value)]
    found: list[tuple[str, Tensor, Tensor]] = []
    for name, tensor in given[:AT_MOST]:
        if PLACEHOLDERS.number(tensor) is not None or (
            type(tensor) is not Tensor and isinstance(tensor, torch.nn.Parameter)
        ):
            continue
        now = version_of(tensor)
        values = _looked_at(tensor, WHOLE if is_full else BRIEF) if versions.get(id(tensor), now) == now else None
        if values is not None:
            found.append((name, tensor, values))
    return found


def given_to_loss_code(events: Sequence[Event], known: set[int]) -> list[tuple[str, Tensor, Tensor]]:
    """Find the integer tensors (labels) that code after the model used first; they are called `loss[n]` in order."""
    found: list[tuple[str, Tensor, Tensor]] = []
    for event in events:
        for external in () if isinstance(event.function, torch.nn.Module) else event.externals:
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
