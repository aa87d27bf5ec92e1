"""How gradients and the loss scale meet: clipped, divided, accumulated before or after unscaling. For HC211 to HC215.

Free are the norms that the session's check has anyway and the order of calls on the scaler. One norm pass more, after
backward, is done in the first AUDITED steps, every AUDIT_EVERY-th, and for a few after something unusual.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.detect import misuse
from hypocenter.session.check import Check
from hypocenter.session.observer import Context, Update
from hypocenter.session.observers.scale_use import ScaleUse, ratio
from hypocenter.tap import scaler_calls
from hypocenter.tap.grad_scaler import torch_scaler_state
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.loss_graph import multiplier
from hypocenter.tap.scaled import ScaledUpdate
from hypocenter.tap.weakly import Ref

SAME = 1e-3  # relative: norms are float32 sums over many elements
AUDITED = 4  # first steps in which the gradients are also measured right after backward
AUDIT_EVERY = 256  # later steps; a pass over all gradients costs 0.3 to 0.5 % of a small model's step
AUDITED_AFTER = 2  # steps after a skipped update, or after the norm has fallen by SUDDEN
SUDDEN = 64.0  # no usual batch makes the gradient norm fall by this factor from one step to the next
FEW = 8  # parameters whose optimizer state tells how many updates are behind
MAX_LOOKS = 64  # at gradients, for whether they were zeroed: each waits for the device


class Scaling(ScaleUse[Context]):
    """Measures what the rules on clipping, unscaling and resuming judge."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._contributions = Contributions()
        self._scaled_roots: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # id -> root, id of its scaler
        self._scalers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id
        self._last_owner = 0  # id of the scaler of the last backward
        self._is_scaling = False  # a scaler is enabled and in use: otherwise nothing is measured
        self._in_step = False
        self._clipping: dict[int, bool] = {}  # by id of their list: the scale is in what is clipped, not seen so far
        self._audit_until = AUDITED
        self._backward: tuple[list[str], list[torch.Tensor]] | None = None  # norms after backward, on their device
        self._is_used = False  # an optimizer has used these gradients: the next backward begins anew
        self._last_norm: dict[int, float] = {}  # by optimizer
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()
        self._judged: weakref.WeakSet[Any] = weakref.WeakSet()
        self._updated: set[int] = set()  # optimizers that have updated under our eyes

    def attach(self) -> Callable[[], None]:
        """Listen to GradScaler; returns the undo."""
        return scaler_calls.attach(self, self.context.warn)

    # calls on the scaler (hypocenter.tap.scaler_calls.ScalerListener)

    def made(self, scaler: Any) -> None:
        """Note that a scaler was constructed."""
        self._made.add(scaler)

    def loaded(self, scaler: Any) -> None:
        """Note that a scaler got its state from a checkpoint."""
        self._loaded.add(scaler)

    def asked(self, scaler: Any) -> None:
        """Count that the program read the scaler's scale."""
        self.n_asked += 1

    def scaled(self, scaler: Any, outputs: Any) -> None:
        """Note that a loss, or several, were multiplied by the scaler's scale."""
        if not scaler.is_enabled():
            return
        self._is_scaling = True
        if len(self._scaled_roots) > 64:  # of losses that no backward ever took
            self._scaled_roots.clear()
        for output in _tensors(outputs):
            self._scaled_roots[id(output)] = Ref(output), id(scaler)
        self._scalers[id(scaler)] = scaler

    def unscaled(self, scaler: Any, optimizer: Any) -> None:
        """Note that the program has taken the scale out of an optimizer's gradients, before the scaler's own step."""
        if scaler.is_enabled() and not self._in_step:
            self._contributions.unscaled(optimizer)

    def updated(self, scaler: Any) -> None:
        """Note that the scaler's scale may have changed."""
        self._contributions.scale_changed(id(scaler))

    def clipping_values(self, parameters: Any) -> None:
        """Note that `clip_grad_value_` is about to run on gradients with the scale in them."""
        if self._is_scaling and not self._contributions.is_unscaled(_tensors(parameters)):
            self.value_clip = "clip_grad_value_"

    # training

    def at_rest(self) -> Iterable[str]:
        """Without a scaler there is nothing to measure."""
        return ("before_backward", "after_backward", "before_update", "after_update") if not self._is_scaling else ()

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Note the scale that the loss carries; in the first step a scaler that is not torch's was not seen yet."""
        if not self._is_scaling and self.context.clock.step > 0:
            return
        if self._is_used:
            self._begin()
        owner = self._owner(roots)
        self._last_owner = owner or 0
        self.multipliers.append(math.inf if owner is not None else self._multiplier(roots))
        self._contributions.before_backward(owner)

    def after_backward(self) -> None:
        """Take the norms as backward left them, at an audit."""
        if not self._is_scaling:
            return
        self._contributions.after_backward()
        if self._is_audit:
            with torch.no_grad(), _disable_current_modes():  # what traces the program must not see our operators
                pairs = [(name, g) for name, p in self.context.names.parameters() if (g := _gradient(p)) is not None]
                self._backward = [name for name, _ in pairs], norms([g for _, g in pairs])

    def before_clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> None:
        """Note if the gradients carry the scale, as the program may unscale them before their norms arrive."""
        if self._is_scaling:
            self._clipping[id(parameters)] = not self._contributions.is_unscaled(parameters)

    def seen_before_clip(self, parameters: Sequence[torch.Tensor], check: Check) -> None:
        """Keep the norms that the clip saw."""
        carries = self._clipping.pop(id(parameters), None)
        if carries is not None:
            self.clips.append((dict(check.grad_norms), carries))

    def before_update(self, update: Update) -> None:
        """Compare the norms of gradients at the update with those before."""
        scaled = update.scaled
        if scaled is None:
            if self._is_scaling and self._backward is not None:
                self._look_for_scale(update)
            return
        self._is_scaling = self._in_step = True
        self._look_at_state(update, scaled)
        scale = scaled.state.scale
        others, n_late = self._contributions.at_step(update.optimizer, id(scaled.scaler), scale)
        if update.check.bad_params or scale <= 0.0:
            return
        self.note(update, misuse.OTHER_SCALE, [s for s in others if s != scale][:1])
        self.note(update, misuse.LATE, [n_late] if n_late else [])
        is_scaled = self.is_applied(update, scale)
        if is_scaled and _is_heard(scaled.scaler):
            self._factors(update, scaled)

    def after_update(self, update: Update) -> None:
        """Forget what was measured: all of it belonged to this update."""
        self._updated.add(id(update.optimizer))
        self.is_alone = len(self._updated) == 1
        self._in_step = False
        self._is_used = True
        if not self._is_scaling:
            return
        self._contributions.stepped(update.optimizer)
        norm, before = update.check.total_norm, self._last_norm.get(id(update.optimizer), 0.0)
        if update.skipped or norm * SUDDEN < before:
            self._audit_until = update.step + 1 + AUDITED_AFTER
        if not update.skipped:
            self._last_norm[id(update.optimizer)] = norm

    def _begin(self) -> None:
        self.forget()
        self._backward, self._is_used = None, False
        self._clipping.clear()

    @property
    def _is_audit(self) -> bool:
        step = self.context.clock.step
        return step < self._audit_until or step % AUDIT_EVERY == 0

    def _owner(self, roots: Sequence[torch.Tensor]) -> int | None:
        """Return the scaler that scaled one of these roots; None if none did."""
        for root in roots:
            reference, owner = self._scaled_roots.pop(id(root), (None, None))
            if reference is not None and reference() is root:
                return owner
        return None

    def _multiplier(self, roots: Sequence[torch.Tensor]) -> float | None:
        if len(roots) != 1 or (roots[0].device.type != "cpu" and not self._is_audit):
            return None
        with _disable_current_modes():
            return multiplier(roots[0])

    def _look_for_scale(self, update: Update) -> None:
        """Find out if an optimizer that steps by itself uses gradients with the scale left in them."""
        scaler = self._scalers.get(self._last_owner)
        is_of_scaler = bool(self.multipliers) and all(m == math.inf for m in self.multipliers)
        if scaler is None or not is_of_scaler or self.n_asked or self._contributions.is_unscaled(update.parameters):
            return
        factor = ratio(next((seen for seen, _ in self.clips), update.check.grad_norms), self._after_backward_norms())
        if factor is not None and abs(factor - 1.0) < SAME and update.check.is_finite:
            self.note(update, misuse.LEFT_IN, [torch_scaler_state(scaler).scale])

    def _factors(self, update: Update, scaled: ScaledUpdate) -> None:
        if self._backward is None and not any(carries for _, carries in self.clips):
            return  # the usual step
        self.compare(update, scaled.state.scale, self._after_backward_norms())

    def _after_backward_norms(self) -> dict[str, float]:
        names, values = self._backward or ([], [])
        return dict(zip(names, to_host(values), strict=True)) if names else {}

    def _look_at_state(self, update: Update, scaled: ScaledUpdate) -> None:
        """Find out at a torch scaler's first step if it is new although the optimizer goes on from a checkpoint."""
        scaler, state = scaled.scaler, scaled.state
        if scaler in self._judged or not isinstance(scaler, torch.amp.GradScaler):
            return
        self._judged.add(scaler)
        as_new = state.growth_tracker == 0 and state.scale == state.init_scale and scaler not in self._loaded
        if as_new and id(update.optimizer) not in self._updated:
            done = _updates_behind(update.optimizer)
            how = "constructed" if scaler in self._made else "found"
            self.note(update, misuse.FRESH, [done] if done > 1 else [], how)


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    return local(parameter.grad) if parameter.grad is not None else None


def _is_heard(scaler: Any) -> bool:
    """Return whether its `unscale_` is the one that we listen to: FSDP's scaler and foreign ones have their own."""
    ours = torch.amp.GradScaler.unscale_
    return getattr(type(scaler), "unscale_", ours) is ours


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _updates_behind(optimizer: Any) -> int:
    """Return how many updates an optimizer's state tells of; 2 for a momentum that counts nothing."""
    state = getattr(optimizer, "state", None) or {}
    most = 0
    for entry in list(state.values())[:FEW]:
        if not isinstance(entry, dict):
            continue
        step = entry.get("step")
        if step is not None:
            most = max(most, int(step))
        elif any(isinstance(v, torch.Tensor) and bool(v.any()) for v in entry.values()):
            most = max(most, 2)
    return most


# A scale is known by the number of `update()` calls before it (its epoch), since reading it would wait for the device;
# the values become known when an optimizer steps. What an optimizer's gradients hold is looked at only when a backward
# comes under another epoch than an earlier one, as with several optimizers: zeroed meanwhile means that nothing is
# mixed.
@dataclass(slots=True)
class _Pending:
    """What one optimizer has been given between two of its steps."""

    optimizer: Any
    epochs: set[int] = field(default_factory=set)  # of the backwards that added to its gradients
    is_unscaled: bool = False
    n_late: int = 0  # backwards that added to gradients already unscaled
    ids: frozenset[int] = frozenset()  # of its parameters
    before: list[tuple[int, int]] = field(default_factory=list)  # (id, version) of its gradients before a backward


class Contributions:
    """Follows calls of backward, unscale_, update and step."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}
        self._epoch: dict[int, int] = {}  # id of a scaler -> updates so far
        self._scale: dict[tuple[int, int], float] = {}  # (id of a scaler, epoch) -> scale
        self._in_backward: int | None = None  # epoch of the backward that runs
        self._n_looks = 0

    def scale_changed(self, scaler_id: int) -> None:
        """Count a call of `update()`."""
        self._epoch[scaler_id] = self._epoch.get(scaler_id, 0) + 1

    def unscaled(self, optimizer: Any) -> None:
        """Note that the program called `unscale_`."""
        if optimizer is not None:
            self._of(optimizer).is_unscaled = True

    def is_unscaled(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Return whether `unscale_` was called, since the last step, for the optimizer of the first of these."""
        first = next((id(p) for p in parameters if p.grad is not None), None)
        return any(entry.is_unscaled and first in entry.ids for entry in self._pending.values())

    def before_backward(self, scaler_id: int | None) -> None:
        """Note that a backward begins of a loss that this scaler has scaled; None: of any other loss."""
        self._in_backward = None if scaler_id is None else self._epoch.get(scaler_id, 0)
        if self._in_backward is None:
            return
        for entry in self._pending.values():
            is_mixed = bool(entry.epochs) and self._in_backward not in entry.epochs
            if (is_mixed or entry.is_unscaled) and not self._has_gradients(entry.optimizer):
                entry.epochs.clear()
                is_mixed = entry.is_unscaled = False
            entry.before = _state_of(entry.optimizer) if is_mixed or entry.is_unscaled else []

    def after_backward(self) -> None:
        """Note whose gradients the backward has changed."""
        epoch, self._in_backward = self._in_backward, None
        if epoch is None:
            return
        for entry in self._pending.values():
            if entry.before and _state_of(entry.optimizer) == entry.before:
                continue
            entry.n_late += entry.is_unscaled and bool(entry.before)
            entry.epochs.add(epoch)

    def at_step(self, optimizer: Any, scaler_id: int, scale: float) -> tuple[list[float], int]:
        """Return the other scales that this update's backwards had, and how many backwards came after `unscale_`."""
        epoch = self._epoch.get(scaler_id, 0)
        self._scale[scaler_id, epoch] = scale
        self._scale.pop((scaler_id, epoch - 8), None)
        entry = self._of(optimizer)
        others = [self._scale[scaler_id, e] for e in entry.epochs if e != epoch and (scaler_id, e) in self._scale]
        return others, entry.n_late

    def stepped(self, optimizer: Any) -> None:
        """Begin anew: the optimizer's gradients are used."""
        entry = self._of(optimizer)
        entry.epochs.clear()
        entry.is_unscaled, entry.n_late = False, 0

    def _of(self, optimizer: Any) -> _Pending:
        entry = self._pending.get(id(optimizer))
        if entry is None or entry.optimizer is not optimizer:
            entry = self._pending[id(optimizer)] = _Pending(optimizer, ids=frozenset(map(id, _parameters(optimizer))))
        return entry

    def _has_gradients(self, optimizer: Any) -> bool:
        """Return whether any gradient is there that is not zero."""
        held = [p.grad for p in _parameters(optimizer) if p.grad is not None and p.grad.layout == torch.strided]
        if not held:
            return False
        self._n_looks += 1
        if self._n_looks > MAX_LOOKS:
            return False
        with torch.no_grad(), _disable_current_modes():  # what traces the program must not see our operators
            return any(norm != 0.0 for norm in to_host(norms(held)))


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def _state_of(optimizer: Any) -> list[tuple[int, int]]:
    """Return identity and version of each gradient: a backward that adds to it changes one of them."""
    return [(id(p.grad), p.grad._version if p.grad is not None else 0) for p in _parameters(optimizer)]
