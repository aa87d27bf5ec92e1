"""Digests of what should be equal over ranks: parameters, gradients at the optimizer, optimizer state.

On the steps of config.replicas, and of the parameters once more when the session closes. Nothing is sent to other
ranks: who reads the recording compares. One transfer per device and occasion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypocenter.detect.replica_rows import AFTER, BEFORE, GRAD, PARAM, REWRITTEN, STATE_PREFIX, UNWRAPPED
from hypocenter.nouns import Phase, Reading, Summary, replace
from hypocenter.schedule import parse
from hypocenter.session.check import scalar_reading
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.sampled import sample
from hypocenter.summary.reducers.torch_small_sketch import small_sketches
from hypocenter.tap.digest import digests, to_host, to_host_with
from hypocenter.tap.gradients import local, norms
from hypocenter.tap.placement import Placements, Wrappers, gathered_late, placement_of_gradient, sees_whole_gradients
from hypocenter.tap.weakly import Ref

STATE_EVERY = 10  # of the occasions: optimizer state is twice the parameters, and follows from them
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of as many bytes
WITNESS = 1 << 14  # elements of the parameter that tells whether somebody writes between updates: 64 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A parameter to be digested, with what is known of it."""

    name: str
    parameter: Tensor
    placement: str
    module: str


class _Remembered:
    """A parameter to be digested when the session closes; the model that knows its name may be gone by then."""

    def __init__(self, held: _Held) -> None:
        self._parameter = Ref(held.parameter)
        self._name, self._placement, self._module = held.name, held.placement, held.module

    def now(self) -> _Held | None:
        """Return the parameter with its name and place; None when it is gone itself."""
        parameter = self._parameter()
        if parameter is None:
            return None
        return _Held(name=self._name, parameter=parameter, placement=self._placement, module=self._module)


class Replicas(Observer):
    """Writes the digests of what should be equal over ranks. Off in a process that is alone."""

    needs = "ranks"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_scheduled, self._is_audited = parse(context.config.replicas), context.audits.is_planned
        self._wrappers = Wrappers()
        self._occasions: dict[int, int] = {}  # id(optimizer) -> occasions so far
        self._known: dict[int, list[_Remembered]] = {}  # id(optimizer) -> its parameters
        self._last_step: dict[int, int] = {}  # id(optimizer) -> step of its last update
        self._witness: _Witness | None = None
        self._done: tuple[int, set[int]] = (-1, set())  # step, ids of the parameters digested in it
        self._placements: tuple[object, Placements] | None = None

    def attach(self) -> Any:
        """Watch for DDP wrappers as they are made; returns the undo."""
        return self._wrappers.attach()

    def before_update(self, update: Update) -> None:
        """Digest parameters and gradients on schedule, and look always if anybody wrote to the witness."""
        if self.context.rank()[1] < 2 or self.context.config.replicas == "never":
            return
        if self._witness is not None and self._witness.is_of(update.optimizer):
            self._witness.look()
        if not self._is_due(update.step):
            return
        if self._done[0] != update.step:
            self._done = (update.step, set())
        fresh = self._fresh(update.parameters)  # an optimizer inside another has the same
        held = self._held(fresh)
        all_held = [*held, *self._held(self._fresh(self._held_elsewhere()))]
        known = {id(h.parameter): h for h in held}
        is_scheduled = self._is_scheduled(update.step)  # else gradients are looked at by laws, which know more of them
        pairs = [(known[id(p)], g) for p, g in update.gradients if is_scheduled and id(p) in known]
        n_own = len(pairs)  # then those that an optimizer of another rank uses: their norms are not at hand
        if is_scheduled and sees_whole_gradients(update.optimizer):
            pairs += [(h, h.parameter.grad) for h in all_held[len(held) :] if h.parameter.grad is not None]
        gradients, n_changed = [g for _, g in pairs], None if self._witness is None else self._witness.n_changed
        norm_vectors = [
            n.float().expand(2).clone() for n in norms([_local_part(g) for g in gradients[n_own:]])
        ]  # pairs
        at_first = [] if self._known else [_extremes(h.parameter) for h in all_held]
        found, vectors = to_host_with(
            [*digests([h.parameter for h in all_held]), *digests(gradients), n_changed],
            [*small_sketches(gradients), *norm_vectors, *at_first],
        )
        n_norms = len(gradients) + len(norm_vectors)
        rows = self._parameter_rows(all_held, found[: len(all_held)], update.step, BEFORE)
        extremes = {h.name: pair for h, pair in zip(all_held, vectors[n_norms:], strict=bool(at_first))}
        self.rows += [_with_extremes(row, extremes.get(row.site)) for row in rows]
        elsewhere = [float(v[0]) if v else math.inf for v in vectors[len(gradients) : n_norms]]
        self.rows += self._gradient_rows(
            pairs, found[len(all_held) : -1], vectors[: len(gradients)], update, [None] * n_own + elsewhere
        )
        self.rows += self._facts(held, update, found[-1] or 0)

    def _is_due(self, step: int) -> bool:
        """Return whether this step is digested: also audited ones, as a change that heals at once shows there alone."""
        return self._is_scheduled(step) or self._is_audited(step)

    def _fresh(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters that were not digested in this step, and note them."""
        fresh = [p for p in parameters if id(p) not in self._done[1]]
        self._done[1].update(map(id, fresh))
        return fresh

    def _held_elsewhere(self) -> list[Tensor]:
        """Return parameters with a gradient that no optimizer here holds: each rank may update a part of the model."""
        held = {id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        return [p for _, p in self.context.names.parameters() if p.grad is not None and id(p) not in held]

    def after_update(self, update: Update) -> None:
        """Digest the optimizer's state at every tenth occasion, and note what to look at when the session closes."""
        if self.context.rank()[1] < 2 or self.context.config.replicas == "never":
            return
        if self._witness is None or not self._witness.is_alive:
            self._witness = _Witness.chosen(update)
        if self._witness is not None and self._witness.is_of(update.optimizer):
            self._witness.remember()
        key = id(update.optimizer)
        if self._is_due(update.step) or key not in self._known:
            all_of = [*update.parameters, *self._held_elsewhere()]
            late = gathered_late(self.context.names.roots())
            self._known[key] = [_Remembered(held) for held in self._held(all_of) if id(held.parameter) not in late]
        self._last_step[key] = update.step
        if not self._is_scheduled(update.step):
            return
        n_before = self._occasions.get(key, 0)
        self._occasions[key] = n_before + 1
        if n_before % STATE_EVERY == 0 and not update.skipped:
            self.rows += self._state_rows(update)

    def at_end(self) -> None:
        """Digest the parameters as they are after the last update."""
        done: set[int] = set()
        for key, remembered in self._known.items():
            living = [h for each in remembered if (h := each.now()) is not None and id(h.parameter) not in done]
            done.update(id(h.parameter) for h in living)
            if living:
                found = to_host(digests([h.parameter for h in living]))
                self.rows += self._parameter_rows(living, found, self._last_step[key], AFTER)

    def _held(self, parameters: Sequence[Tensor]) -> list[_Held]:
        labelled = [(self.context.label(p), p) for p in parameters]
        n_named = Counter(name for name, _ in labelled)  # those outside every model are named by their shapes
        named = [(name, p) for name, p in labelled if n_named[name] == 1]
        placements = self._placements_of(named)
        kinds = self._kinds()
        return [
            _Held(name=name, parameter=p, placement=placements.of(name, p), module=kinds.get(id(p), ""))
            for name, p in named
        ]

    def _placements_of(self, named: Sequence[tuple[str, Tensor]]) -> Placements:
        roots = self.context.names.roots()
        wrappers = self._wrappers.alive(roots)
        key = (self.context.names.generation, tuple(map(id, wrappers)), tuple(id(p) for _, p in named))
        if self._placements is None or self._placements[0] != key:
            self._placements = (key, Placements(named, wrappers, roots))
        return self._placements[1]

    def _kinds(self) -> dict[int, str]:
        """Return class names of the modules that own parameters, by the parameter's id."""
        owners = (m for root in self.context.names.roots() for m in root.modules())
        return {id(p): type(m).__name__ for m in owners for p in m._parameters.values() if p is not None}

    def _parameter_rows(
        self, held: Sequence[_Held], found: Sequence[int | None], step: int, call: int
    ) -> list[Reading]:
        return [
            self._row(h, "param", PARAM, step, h.parameter, digest, call=call)
            for h, digest in zip(held, found, strict=True)
            if digest is not None
        ]

    def _gradient_rows(
        self, pairs: Sequence[tuple[_Held, Tensor]], found: Sequence[int | None],
        sketches: Sequence[tuple[float, ...] | None], update: Update, norms_here: Sequence[float | None],
    ) -> list[Reading]:  # fmt: skip
        sees_whole = sees_whole_gradients(update.optimizer)
        rows: list[Reading] = []
        for (h, gradient), digest, sketch, here in zip(pairs, found, sketches, norms_here, strict=True):
            if digest is None:
                continue
            is_reduced = sees_whole and here is None  # it may be brought to its owner alone
            placement = placement_of_gradient(gradient, h.placement, is_reduced=is_reduced)
            norm = update.check.grad_norms.get(h.name, 0.0) if here is None else here
            is_bad = h.name in update.check.bad_params or not math.isfinite(norm)
            summary = Summary(
                n=gradient.numel(), n_nan=int(is_bad), sumsq=0.0 if is_bad else norm * norm,
                sketch=None if is_bad else sketch,
            )  # fmt: skip
            rows.append(self._row(h, "grad", GRAD, update.step, gradient, digest, summary=summary, placement=placement))
        return rows

    def _state_rows(self, update: Update) -> list[Reading]:
        state: Any = getattr(update.optimizer, "state", {})
        if not isinstance(state, Mapping):
            return []
        tensors: list[tuple[_Held, str, Tensor]] = []
        for h in self._held(update.parameters):
            own: Any = state.get(h.parameter)
            if isinstance(own, Mapping):
                tensors += [(h, str(k), v) for k, v in own.items() if isinstance(v, Tensor) and v.numel() > 1]
        found = to_host(digests([t for _, _, t in tensors]))
        return [
            self._row(h, "optimizer", STATE_PREFIX + key, update.step, tensor, digest, call=AFTER,
                      placement=placement_of_gradient(tensor, h.placement, is_reduced=True))
            for (h, key, tensor), digest in zip(tensors, found, strict=True)
            if digest is not None
        ]  # fmt: skip

    def _row(
        self, held: _Held, phase: Phase, port: str, step: int, tensor: Tensor, digest: int, *, call: int = BEFORE,
        summary: Summary | None = None, placement: str | None = None,
    ) -> Reading:  # fmt: skip
        return Reading(
            step=step, microbatch=0, phase=phase, site=held.name, port=port, order=self.context.clock.next_order(),
            call=call, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape),
            summary=summary or Summary(n=tensor.numel()), module=held.module, digest=digest,
            placement=held.placement if placement is None else placement,
        )  # fmt: skip

    def _facts(self, held: Sequence[_Held], update: Update, n_rewritten: int) -> list[Reading]:
        order, step = self.context.clock.next_order, update.step
        rows: list[Reading] = []
        if n_rewritten:
            rows.append(scalar_reading(REWRITTEN, "param", float(n_rewritten), step, order()))
        if self._wrappers.alive(self.context.names.roots()):
            synchronised = self._placements_of([(h.name, h.parameter) for h in held]).synchronised
            n_outside = sum(id(h.parameter) not in synchronised for h in held)
            rows.append(scalar_reading(UNWRAPPED, "param", float(n_outside), step, order()))
        return rows


def _extremes(parameter: Tensor) -> Tensor | None:
    """Return the smallest and largest of a sample (float32), to tell later if ranks share more than a constant."""
    values = sample(parameter.detach())
    if values is None or not values.numel() or not values.is_floating_point() or values.device.type == "meta":
        return None
    return torch.stack(torch.aminmax(values.float()))


def _local_part(gradient: Tensor) -> Tensor:
    """Return what of a gradient is on this rank; of none an empty one."""
    part = local(gradient.detach())
    return gradient.new_empty(0) if part is None else part


def _with_extremes(row: Reading, pair: tuple[float, ...] | None) -> Reading:
    if pair is None:
        return row
    return replace(row, summary=replace(row.summary, min=pair[0], max=pair[1]))


class _Witness:
    """A small parameter whose bits are compared from the end of one update to the beginning of the next."""

    def __init__(self, optimizer: Any, parameter: Tensor) -> None:
        self._optimizer = Ref(optimizer)
        self._parameter = Ref(parameter)
        self._before: Tensor | None = None
        self._n_changed: Tensor | None = None

    @classmethod
    def chosen(cls, update: Update) -> _Witness | None:
        """Choose the first small parameter that has a gradient; None when there is none."""
        small = [p for p, _ in update.gradients if 0 < p.numel() <= WITNESS and p.is_floating_point()]
        return cls(update.optimizer, small[0]) if small else None

    @property
    def is_alive(self) -> bool:
        """Whether the parameter and its optimizer still exist."""
        return self._optimizer() is not None and self._parameter() is not None

    def is_of(self, optimizer: Any) -> bool:
        """Return whether the parameter is one of this optimizer's."""
        return self._optimizer() is optimizer

    def remember(self) -> None:
        """Remember the bits after an update."""
        bits = self._bits()
        self._before = bits.clone() if bits is not None else None

    def look(self) -> None:
        """Compare the bits before the next update, and count if they have changed."""
        now, before = self._bits(), self._before
        if now is None or before is None or now.device != before.device or now.shape != before.shape:
            return
        changed = (now != before).any()
        self._n_changed = changed.to(torch.int64) if self._n_changed is None else self._n_changed + changed
        self._before = now.clone()

    def _bits(self) -> Tensor | None:
        """Return the values on this rank as integers, so that a NaN is equal to itself."""
        parameter = self._parameter()
        values = local(parameter) if parameter is not None else None
        return values.view(_INTEGER[values.itemsize]) if values is not None and values.itemsize in _INTEGER else None

    @property
    def n_changed(self) -> Tensor | None:
        """How often the parameter was changed between updates, on its device; None if it was never looked at."""
        return self._n_changed
