"""Norms that use statistics which nobody has measured. For HC263.

Batch norms keep the mean and variance of what they have seen, for evaluation. They are made with 0 and 1. Where these
are still there after some updates, although the norm was called in training (its momentum is 0), or although its own
weight has changed (an average of the weights follows the parameters and not the buffers), what it does in evaluation
is no normalisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from hypocenter.detect.law_rows import UNMEASURED
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred
from hypocenter.tap.gradients import local

EVERY, DENSE = 8, 64  # steps: every 8th up to the 64th, then those that double
NORMS = 16  # that are looked at, of all models
LOOKS = 2  # in a row that find it so


class Unmeasured(Observer):
    """Writes a row for the first norm of each kind whose statistics nobody has measured."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deferred = Deferred(context.ride)
        self._n_found: dict[tuple[str, bool], int] = {}  # by name and mode: looks in a row
        self._told: set[bool] = set()

    def at_rest(self) -> Iterable[str]:
        """It looks at steps at which all are told."""
        return ("after_update",)

    def after_update(self, update: Update) -> None:
        """Look at some norms of the models that were called, after few updates and then rarely."""
        step = update.step
        is_due = step % EVERY == 0 if step <= DENSE else step & (step - 1) == 0
        if not step or not is_due or len(self._told) == 2:
            return
        trained = set(map(id, update.parameters))  # what is trained in the mode of evaluation HC237 tells
        norms = [(name, norm) for name, norm in self._norms() if norm.training or id(norm.weight) not in trained]
        by_device: dict[torch.device, list[tuple[str, nn.Module, Tensor]]] = {}
        for name, norm in norms[:: -(-len(norms) // NORMS) or 1]:
            if (numbers := _numbers(norm)) is not None:
                by_device.setdefault(numbers.device, []).append((name, norm, numbers))
        for found in by_device.values():
            facts = [(name, norm.training, float(getattr(norm, "momentum", None) or 0.0)) for name, norm, _ in found]

            def read(host: Sequence[float], facts: Sequence[tuple[str, bool, float]] = facts) -> None:
                for at, (name, is_training, momentum) in enumerate(facts):
                    is_made, n_seen, is_changed = host[3 * at : 3 * at + 3]
                    is_off = bool(is_made) and bool(n_seen if is_training else not n_seen and is_changed)
                    self._note(name, is_training, momentum, step, is_off=is_off)

            self._deferred.add(torch.cat([numbers for _, _, numbers in found]), read)

    def _norms(self) -> Iterator[tuple[str, _NormBase]]:
        """Yield the norms of all models that have statistics and parameters of their own."""
        for root in self.context.names.roots():
            for module in root.modules():
                if isinstance(module, _NormBase) and module.running_mean is not None and module.affine:
                    yield self.context.names.module_name(module) or type(module).__name__, module

    def _note(self, name: str, is_training: bool, momentum: float, step: int, *, is_off: bool) -> None:
        key = name, is_training
        self._n_found[key] = self._n_found.get(key, 0) + 1 if is_off else 0
        if self._n_found[key] == LOOKS and is_training not in self._told:
            self._told.add(is_training)
            order, mode = self.context.clock.next_order(), "training" if is_training else "evaluation"
            self.rows.append(number_row(name, UNMEASURED, step, order, momentum, module=mode))


def _numbers(norm: _NormBase) -> Tensor | None:
    """Return (are statistics as they were made, batches seen, has the weight changed) as a tensor, or None."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return None
    held = [local(each) for each in (norm.running_mean, norm.running_var, norm.weight, norm.bias)]
    mean, variance, weight, bias = held
    if mean is None or variance is None or weight is None or bias is None:
        return None
    with torch.no_grad():
        is_made = (mean == 0).all() & (variance == 1).all()
        is_changed = (weight != 1).any() | (bias != 0).any()
        return torch.stack([is_made.float(), norm.num_batches_tracked.float().reshape(()), is_changed.float()])
