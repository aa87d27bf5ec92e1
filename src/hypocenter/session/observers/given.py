"""The law "given": what a forward was given stays until its backward has used it. For HC264.

Autograd keeps a reference to what a backward needs, and watches over it by version counters. These tell of operations
of torch alone: NumPy, a loader that fills its buffer again, `.data` and kernels of extensions write unseen. Some values
of each input are kept at the call, at some steps, and compared when backward is over. An input that has changed counts
only where the forward, done again, saves it for backward: others may be written over as soon as they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.capturing import is_capturing, reuses_memory
from hypocenter.detect.law_rows import GIVEN_CHANGED
from hypocenter.nouns import Reading, replace
from hypocenter.replay.engine import ReplayImpossible
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import COPIED_AT_MOST, Deferred
from hypocenter.tap.tape import External, Microbatch, version_of

ELEMENTS = 256  # of an input
EVERY = 8  # steps, beside those of `doubling` and the audited ones
MOST_PROOFS = 4  # replays; the first changed input that backward needs is told, and no other


@dataclass(frozen=True, slots=True)
class _Changed:
    """An input of a micro-batch, and which of the values that were kept are others: a mask, on its device."""

    microbatch: Microbatch
    external: External
    where: Tensor


class Given(Observer):
    """Writes a row for an input that was written over before its backward had used it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._changed: list[_Changed] = []
        self._n_proofs = 0
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
        seen = {id(e.tensor): e for _, event in events for e in event.externals if e.seen is not None}
        by_device: dict[torch.device, list[_Changed]] = {}
        with torch.no_grad(), _disable_current_modes():
            for external in seen.values():
                if (where := _changed(external)) is not None:
                    by_device.setdefault(where.device, []).append(_Changed(microbatch, external, where))
            for there in by_device.values():
                are_any = torch.stack([each.where.any() for each in there]).float()
                self._deferred.add(are_any, _Arrived(self._changed, there))

    def before_update(self, update: Update) -> None:
        """Tell of the first input that has changed and that backward needed, and look at later steps in turn."""
        changed = self._changed[:]
        self._changed.clear()
        for each in changed:
            if self._n_proofs == MOST_PROOFS or not self.context.config.replay:
                break
            self._n_proofs += 1
            if self._is_needed(each):
                self._n_proofs = MOST_PROOFS
                self.rows.append(self._row(each, update.step))

    def after_update(self, update: Update) -> None:
        """Look at the next step, or not."""
        step = update.step + 1
        is_due = step % EVERY == 0 or (step < EVERY and self._is_due(step)) or self.context.audits.is_due(step)
        self.context.tape.look = self._look if is_due and self._n_proofs < MOST_PROOFS else None

    def _is_needed(self, changed: _Changed) -> bool:
        """Return whether a forward that is done again keeps for its backward what has changed of this input."""
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

    def _row(self, changed: _Changed, step: int) -> Reading:
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
        order = self.context.clock.next_order()
        row = number_row(
            name, GIVEN_CHANGED, step, order, float(changed.where.sum()), call=changed.where.numel(),
            module="loss" if owner is None else self.context.names.module_name(owner) or type(owner).__name__,
        )  # fmt: skip
        dtype = str(tensor.dtype).removeprefix("torch.")
        return replace(row, dtype=dtype, shape=tuple(tensor.shape), op=str(changed.microbatch.number))


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
    tensor, seen = external.tensor, external.seen
    if seen is None or external.version < 0 or version_of(tensor) != external.version:
        return None
    if tensor.untyped_storage().nbytes() < _end(tensor) * tensor.element_size():
        return None  # the program has given its memory back
    now = _some(tensor)
    if now is None or now.shape != seen.shape:
        return None
    return (seen != now) & ((seen == seen) | (now == now))  # a NaN that stays is no change
