"""What was trained and is frozen in mid-run keeps the statistics that it was trained with. For HC263.

`requires_grad_(False)` holds the weights of a batch norm; in the mode of training its statistics go on following what
it is given. How far is measured by what the norm gives, in the mode of evaluation, for what it was measured on when it
was frozen: z = (x - mean) / std becomes z * std / std' + (mean - mean') / std'.

A norm that was never trained here, that is trained again (networks that take turns), or whose statistics are begun anew
is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from hypocenter.detect.law_rows import FROZEN_STATISTICS, MUCH
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.tap.weakly import Ref

EVERY = 4  # updates
NORMS, ELEMENTS = 8, 64
TRAINED = 2  # looks at which its weight was trained
STAYS = 4  # looks in a row at which it is frozen, before it is measured; again when they have doubled
MADE = 0.15  # of the statistics, at most, that is still what they were made with when it is frozen


@dataclass(slots=True)
class _Norm:
    name: str
    norm: Ref[_NormBase]
    n_trained: int = 0
    n_frozen: int = 0  # looks
    begun: tuple[int, int, Tensor] | None = None  # when it was frozen: step, version of its counter, numbers
    is_over: bool = False
    weight: Ref[Tensor] | None = None  # at the last look

    @property
    def is_trained(self) -> bool:
        """Whether it goes on being trained, as at the last look."""
        weight = None if self.weight is None or self.begun is not None else self.weight()
        return weight is not None and weight.requires_grad


class FrozenStatistics(Observer):
    """Writes a row for the first norm whose statistics go on moving, and for the first that they have moved far of."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deferred = Deferred(context.ride)
        self._norms: list[_Norm] = []
        self._is_found = False
        self._told: set[bool] = set()  # whether it was far
        self._n_updates = 0

    def at_rest(self) -> Iterable[str]:
        """Without norms there is nothing to look at."""
        return ("before_update",) if self._is_found and not (self._norms or self._deferred.waiting) else ()

    def on_root(self, model: object) -> None:
        """They are looked for anew."""
        self._is_found = False

    def before_update(self, update: Update) -> None:
        """Look whether norms are trained, and how far the statistics of those have gone that are not any more."""
        if self._deferred.waiting:
            self._deferred.read()
        self._n_updates += 1
        if True in self._told:
            return
        if not self._is_found and self._n_updates % EVERY == 0:
            known = {id(each.norm()): each for each in self._norms}
            self._is_found, self._norms = True, [known.get(id(norm), new) for norm, new in self._find()]
        if not self._norms:
            return
        is_due = self._n_updates % EVERY == 0
        own = update.ids if is_due else set[int]()
        n_over = 0
        for each in self._norms:
            if is_due or not each.is_trained:
                self._look(each, own, update.step, is_due=is_due)
                n_over += each.is_over
        if n_over:
            self._norms = [each for each in self._norms if not each.is_over]

    def _find(self) -> Iterator[tuple[_NormBase, _Norm]]:
        """Yield some of the norms that have statistics and weights of their own, over all of the models."""
        norms = {
            id(module): module
            for root in self.context.names.roots() for module in root.modules()
            if isinstance(module, _NormBase) and module.affine and module.num_batches_tracked is not None
        }  # fmt: skip
        for norm in list(norms.values())[:: -(-len(norms) // NORMS) or 1]:
            yield norm, _Norm(self.context.names.module_name(norm) or type(norm).__name__, Ref(norm))

    def _look(self, each: _Norm, own: Set[int], step: int, *, is_due: bool) -> None:
        norm = each.norm()
        if norm is None or norm.num_batches_tracked is None:
            each.is_over = True
            return
        each.weight = Ref(norm.weight)
        if norm.weight.requires_grad:
            each.n_trained += id(norm.weight) in own
            each.is_over = each.begun is not None
            return
        if each.n_trained < TRAINED or not norm.training or not (is_due or each.begun is None):
            return
        version = norm.num_batches_tracked._version
        if each.begun is None:
            if (numbers := _numbers(norm)) is not None:
                each.begun = step, version, numbers
            return
        each.n_frozen += 1
        if each.n_frozen >= STAYS and each.n_frozen & (each.n_frozen - 1) == 0:
            numbers = _numbers(norm)
            if numbers is not None:
                self._measure(each, numbers, version - each.begun[1], norm.momentum)

    def _measure(self, each: _Norm, now: Tensor, n_calls: int, momentum: float | None) -> None:
        assert each.begun is not None
        (since, _, before), step = each.begun, self.context.clock.step

        def read(host: Sequence[float]) -> None:
            n_before, n_now, far = host
            left = 0.0 if momentum is None else (1 - momentum) ** n_before
            each.is_over = each.is_over or n_now - n_before != n_calls or left > MADE or not n_before
            if each.is_over or not far > 0.0 or (far > MUCH) in self._told:
                return
            self._told.add(far > MUCH)
            row = number_row(each.name, FROZEN_STATISTICS, step, self.context.clock.next_order(), far, call=since)
            self.rows.append(row)

        self._deferred.add(torch.stack([before[0], now[0], _moved(before, now, momentum)]), read)


def _numbers(norm: _NormBase) -> Tensor | None:
    """Return a copy of (batches seen, some means, as many deviations), or None."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return None
    mean, variance = (sample(each.detach(), ELEMENTS) for each in (norm.running_mean, norm.running_var))
    if mean is None or variance is None:
        return None
    with torch.no_grad():
        counter = norm.num_batches_tracked.reshape(1)
        return torch.cat([counter.float(), mean.float(), (variance.float() + norm.eps).sqrt()])


@torch.no_grad()
def _moved(before: Tensor, now: Tensor, momentum: float | None) -> Tensor:
    """Return how far what a norm gives has moved, of its usual size; what it was made with is taken out before."""
    left = torch.zeros_like(before[0]) if momentum is None else (1 - momentum) ** before[0]
    (mean, std), (mean_now, std_now) = before[1:].chunk(2), now[1:].chunk(2)
    has_moved = ((mean_now != mean) | (std_now != std)).any()
    mean = mean / (1 - left)
    std = ((std.square() - left) / (1 - left)).clamp_min(0.0).sqrt()
    moved = (std / std_now - 1).square() + ((mean - mean_now) / std_now).square()
    return has_moved * moved.mean().sqrt()
