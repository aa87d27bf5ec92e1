"""The law "given" in torch: see hypocenter.session.observers.given.

Version counters tell of writes by operations of torch alone, and autograd itself refuses to go on after these. What
counts here are writes that they do not tell of: by NumPy, a loader, `.data`, kernels of extensions, other ranks. Of
what other ranks are about to write to the tape has made a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.capturing import is_capturing, reuses_memory
from hypocenter.nouns import Reading, replace
from hypocenter.replay.engine import ReplayImpossible
from hypocenter.session.observer import Context
from hypocenter.session.observers import given
from hypocenter.session.observers.given import ELEMENTS
from hypocenter.session.observers.sampled import COPIED_AT_MOST, Deferred
from hypocenter.tap.tape import External, Microbatch, version_of

RECEIVED = "what another rank sent was received there in between, which no version counter of torch tells"


@dataclass(frozen=True, slots=True)
class _Changed:
    """An input of a micro-batch, and which of the values that were kept are others: a mask, on its device."""

    microbatch: Microbatch
    external: External
    where: Tensor


class Given(given.Given[Context]):
    """Keeps values of what the tape takes in from outside."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deferred = Deferred(context.ride)

    def attach(self) -> Callable[[], None]:
        """Look at the first step; the undo looks at none any more."""
        self.context.tape.look = self._look

        def undo() -> None:
            self.context.tape.look = None

        return undo

    def _look(self, tensor: Tensor) -> Tensor | None:
        """Return a copy of some values of an input; None for what is none, or cannot be read."""
        if type(tensor) is not Tensor or tensor.requires_grad or tensor.layout != torch.strided or tensor.is_meta:
            return None
        try:
            if not tensor.numel() or is_capturing(tensor.device.type) or torch.compiler.is_compiling():
                return None
            with torch.no_grad(), _disable_current_modes():
                found = _some(tensor)
                return None if found is None else found.clone()
        except Exception:  # an unusual tensor must not break the user's forward
            self.context.tape.look = None
            return None

    def after_backward(self) -> None:
        """Compare what this micro-batch was given with what is there now."""
        tape = self.context.tape
        if tape.look is None or not tape.microbatches or reuses_memory() or is_capturing():
            return
        microbatch = tape.microbatches[-1]
        if microbatch.is_taken:  # backward was over long ago
            return
        events = [] if microbatch.why_not else tape.slice(microbatch)
        seen = {
            id(e.tensor): e for _, event in events for e in event.externals if e.seen is not None or e.lost is not None
        }
        by_device: dict[torch.device, list[_Changed]] = {}
        with torch.no_grad(), _disable_current_modes():
            for external in seen.values():
                if (where := _changed(external)) is not None:
                    by_device.setdefault(where.device, []).append(_Changed(microbatch, external, where))
            for there in by_device.values():
                are_any = torch.stack([each.where.any() for each in there]).float()
                self._deferred.add(are_any, _Arrived(self.changed, there))

    def look(self, *, is_due: bool) -> None:
        """By the tape."""
        self.context.tape.look = self._look if is_due else None

    def is_needed(self, changed: _Changed) -> bool:
        """By the hooks that autograd has for what it saves."""
        tensor = changed.external.tensor
        storage, size = tensor.untyped_storage().data_ptr(), tensor.element_size()
        places = [storage + size * each for each in _places(tensor, changed.where.nonzero().flatten().tolist())]
        is_saved = False

        def pack(saved: Tensor) -> Tensor:
            nonlocal is_saved
            if saved.layout == torch.strided and saved.untyped_storage().data_ptr() == storage:
                first, end = saved.data_ptr(), storage + _end(saved) * saved.element_size()
                is_saved = is_saved or any(first <= place < end for place in places)
            return saved

        trained = self._trained(changed.microbatch)
        if trained is None:
            return False
        hooks = saved_tensors_hooks(pack, lambda tensor: tensor)
        with self.context.audits.spending():
            try:
                self.context.replayer.run(changed.microbatch, [trained], around=hooks)
            except (ReplayImpossible, RuntimeError):
                return False
        return is_saved

    def _trained(self, microbatch: Microbatch) -> Tensor | None:
        """Return one parameter of this micro-batch that is trained."""
        for _, event in self.context.tape.slice(microbatch):
            own = event.module.parameters() if event.module is not None else (e.tensor for e in event.externals)
            found = next((p for p in own if isinstance(p, nn.Parameter) and p.requires_grad), None)
            if found is not None:
                return found
        return None

    def row(self, changed: _Changed, step: int) -> Reading:
        """As the replayer names it."""
        tensor, tape = changed.external.tensor, self.context.tape
        inputs = self.context.replayer.named_inputs(changed.microbatch)
        name = next((name for name, given in inputs if given is tensor), "batch")
        owner = next(
            (
                event.module
                for _, event in tape.slice(changed.microbatch)
                for e in event.externals
                if e.tensor is tensor
            ),
            None,
        )
        called = "loss" if owner is None else self.context.names.module_name(owner) or type(owner).__name__
        names = (RECEIVED,) if changed.external.lost is not None else ()
        row = self.told(name, step, int(changed.where.sum()), changed.where.numel(), called)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return replace(row, dtype=dtype, shape=tuple(tensor.shape), op=str(changed.microbatch.number), names=names)


class _Arrived:
    """Takes in which of some inputs have changed, once that has arrived."""

    def __init__(self, into: list[_Changed], looked_at: Sequence[_Changed]) -> None:
        self._into, self._looked_at = into, looked_at

    def __call__(self, numbers: Sequence[float]) -> None:
        """Note those of which a number tells that they have."""
        self._into += [each for each, has_changed in zip(self._looked_at, numbers, strict=True) if has_changed]


def _some(tensor: Tensor) -> Tensor | None:
    """Return up to ELEMENTS values at an equal stride; None where that would copy a large tensor."""
    if not tensor.is_contiguous() and tensor.numel() > COPIED_AT_MOST:
        return None
    return tensor.reshape(-1)[:: -(-tensor.numel() // ELEMENTS)]


def _places(tensor: Tensor, numbers: Sequence[int]) -> list[int]:
    """Return where these of the values that `_some` gives stand in the storage, counted in elements."""
    found = list[int]()
    for number in numbers:
        rest, place = number * -(-tensor.numel() // ELEMENTS), int(tensor.storage_offset())
        for n, by in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            rest, at = divmod(rest, n)
            place += at * by
        found.append(place)
    return found


def _end(tensor: Tensor) -> int:
    """Return where in its storage a tensor ends, counted in elements."""
    span = sum((int(n) - 1) * by for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()) + span + 1


def _changed(external: External) -> Tensor | None:
    """Return which of the values that were kept are others now, on the device; None where torch knows of a write."""
    tensor, seen = external.tensor if external.lost is None else external.lost, external.seen
    if external.lost is not None:
        seen = _some(external.tensor)
    elif external.version < 0 or version_of(tensor) != external.version:
        return None
    if seen is None or tensor.untyped_storage().nbytes() < _end(tensor) * tensor.element_size():
        return None  # the program has given its memory back
    now = _some(tensor)
    if now is None or now.shape != seen.shape:
        return None
    return (seen != now) & ((seen == seen) | (now == now))  # a NaN that stays is no change
