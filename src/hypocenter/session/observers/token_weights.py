"""What a label weighs in a step that is made of several micro-batches, or of several ranks. For HC232, 331, 333, 337.

The node of the cross-entropy is looked for in the graph of each loss; what it gives back in backward holds, row by row,
the weight that the label of that row has in the loss: 1/n each for a mean over n labels, 0 for one that is ignored.
Nothing that autograd has saved is read (that might start a recompute). Looked at are the first step, programs that
called backward several times in their last one, those with context parallelism, and audited steps of several ranks.
Not seen: fused and compiled cross-entropies, losses that are no cross-entropy, steps with several of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.detect.law_rows import LABELS, MADE, NOT_DIVIDED, SITE, UNBALANCED
from hypocenter.detect.microbatch_rows import FAINTLY_UNEVEN, LABEL_WEIGHT, UNEVEN
from hypocenter.nouns import Summary, replace
from hypocenter.replay.engine import ReplayImpossible
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import wide_dtype
from hypocenter.session.observers.label_rows import Labels, even_factors, gap_row, label_rows, uneven_share
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.trainers import calling_trainer
from hypocenter.tap.gradients import to_host
from hypocenter.tap.source import user_line

DENSE = 8  # steps of several micro-batches that are all looked at; then as often as replicas are
MAX_NODES = 64  # of the graph, from the loss on
MAX_REPLAYS = (
    2  # uneven steps whose micro-batches are replayed, of the faint ones as many: the second shows that it lasts
)
MAX_MICROBATCHES = 16  # of a step that is replayed
SUMS, MEAN = 2, 1e-3  # steps in a row in which the weights of the labels of each micro-batch add up to 1, so nearly
PARAMETERS, MAX_ELEMENTS = 8, 1 << 22  # whose gradients are compared, and elements of each
_LOSSES = {"NllLossBackward0": 1, "NllLoss2DBackward0": 1}  # the dimension of classes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """Numbers of one micro-batch's cross-entropy: labels in all, labels that count, the sum of their weights."""

    microbatch: int
    place: tuple[str, int]  # the line that called backward
    numbers: Tensor
    host: list[float] = field(default_factory=list)  # the same, once they have arrived


class _Weights:
    """A hook on the node of a cross-entropy, which reads the weights of labels in backward."""

    def __init__(self, node: Any, class_dim: int) -> None:
        self._dim = class_dim
        self.numbers: Tensor | None = None
        self._handle = node.register_hook(self._heard)

    def _heard(self, given: Any, _: Any) -> None:
        try:
            with torch.no_grad(), _disable_current_modes():
                gradient = given[0]
                if hasattr(gradient, "to_local"):
                    return  # classes are spread over ranks: to add them up would be a collective
                by_label = gradient.sum(dim=self._dim if gradient.dim() > 1 else 0, dtype=torch.float32)
                wide = by_label.to(wide_dtype(by_label.device))
                n_counted = (wide != 0).sum().to(wide.dtype)
                total = torch.full_like(n_counted, by_label.numel())
                self.numbers = torch.stack([total, n_counted, wide.sum()])
        except Exception:  # an unusual gradient must not break the user's backward
            self.numbers = None

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()


class TokenWeights(Observer):
    """Compares the shares that micro-batches have in the loss with the numbers of labels in them."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.replicas)
        self._is_several = True  # calls of backward in the last step; not known of the first one
        self._n_looked = 0
        self._n_sums = 0  # steps in a row
        self._n_replayed = {True: 0, False: 0}  # of steps that are uneven, and faintly so
        self._hook: _Weights | None = None
        self._place = ("", 0)
        self._labels: list[_Heard] = []

    def attach(self) -> Callable[[], None]:
        """Return the undo, which takes off a hook that is on."""
        return self._let_go

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def at_rest(self) -> Iterable[str]:
        """With one micro-batch, on one rank, there is nothing to compare."""
        is_busy = self._is_several or self._hook is not None or self._labels or self.context.rank()[1] > 1
        return () if is_busy else ("before_backward", "after_backward", "before_update", "after_update")

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Look for the cross-entropy of this micro-batch in the graph of its loss."""
        if self._hook is not None:
            self._let_go()
        step = self.context.clock.step
        is_wanted = (self._is_several and self._n_looked < DENSE) or (self._due(step) and self._is_wanted())
        if not (is_wanted or self._is_over_ranks(step)):
            return
        if len(roots) == 1 and (found := cross_entropy(roots[0])) is not None:
            self._place = user_line()
            self._hook = _Weights(*found)

    def _is_wanted(self) -> bool:
        """Return whether there are several micro-batches, or several ranks to a sequence."""
        return self._is_several or len(self.context.place().groups.get("cp", ())) > 1

    def _is_over_ranks(self, step: int) -> bool:
        """Return whether sketches of this step's gradients are written, which tell what each rank weighs."""
        return self.context.rank()[1] > 1 and self.context.audits.is_due(step)

    def after_backward(self) -> None:
        """Keep the weights of this micro-batch's labels, which are known after backward."""
        hook = self._hook
        if hook is None:
            return
        self._let_go()
        if hook.numbers is not None:
            heard = _Heard(microbatch=self.context.clock.microbatch, place=self._place, numbers=hook.numbers)
            self._labels.append(heard)
            if hook.numbers.device.type != "cpu":
                self.context.ride(hook.numbers.float(), heard.host.extend)

    def before_update(self, update: Update) -> None:
        """Compare the shares of micro-batches in the loss with the numbers of their labels."""
        labels, self._labels = self._labels, []
        if labels and len(labels) == len(update.microbatches) and len(self.context.place().groups.get("cp", ())) > 1:
            self._write_whole(update, labels)
        if labels and len(labels) == len(update.microbatches) and self._is_over_ranks(update.step):
            self._write_labels(update, labels)
        if len(labels) < 2 or len(labels) != len(update.microbatches) or len({each.place for each in labels}) > 1:
            return
        self._n_looked += 1
        found = [Labels(*(each.host or each.numbers.tolist())) for each in labels]
        self._look_for_sum(update, found)
        if (share := uneven_share(found)) < FAINTLY_UNEVEN:
            return
        order = self.context.clock.next_order
        self.rows += label_rows(found, update.step, order)
        kind = share >= UNEVEN
        if self._n_replayed[kind] < MAX_REPLAYS and len(labels) <= MAX_MICROBATCHES and self.context.config.replay:
            self._n_replayed[kind] += 1
            gap = self._replayed_gap(update, even_factors(found))
            if gap is not None:
                self.rows.append(gap_row(gap, update.step, order))

    def _look_for_sum(self, update: Update, labels: Sequence[Labels]) -> None:
        """Write a row, once, where a Trainer is to make one mean of the micro-batches, and the loss of each is one."""
        n, scale = len(labels), (update.scaled.state.scale if update.scaled is not None else 1.0) or 1.0
        are_means = all(abs(abs(each.weight) / scale - 1.0) <= MEAN for each in labels)
        self._n_sums = self._n_sums + 1 if are_means else 0
        if self._n_sums != SUMS or n == self.context.rank()[1]:  # over ranks each counts as often as there are ranks
            return
        trainer = calling_trainer(sys._getframe(1))
        if trainer is not None and trainer.args.gradient_accumulation_steps == n:
            order = self.context.clock.next_order()
            row = number_row(SITE, UNBALANCED, update.step, order, float(n), call=SUMS - 1, module=NOT_DIVIDED)
            self.rows.append(replace(row, names=(type(trainer).__name__,)))

    def after_update(self, update: Update) -> None:
        """Note whether this program accumulates gradients over several micro-batches."""
        self._is_several = len(update.microbatches) > 1

    def _write_whole(self, update: Update, labels: Sequence[_Heard]) -> None:
        """Write the sum of the weights of all labels of this rank: it is 1 for a mean over them."""
        scale = update.scaled.state.scale if update.scaled is not None else 1.0
        whole = -float(sum(each.numbers.cpu()[2] for each in labels)) / (scale or 1.0)
        if math.isfinite(whole):
            order = self.context.clock.next_order()
            self.rows.append(number_row(LABEL_WEIGHT, "value", update.step, order, whole))

    def _write_labels(self, update: Update, labels: Sequence[_Heard]) -> None:
        """Write how many labels this rank has, and what they weigh together."""
        scale = (update.scaled.state.scale if update.scaled is not None else 1.0) or 1.0
        _, n, weight = torch.stack([each.numbers.cpu() for each in labels]).sum(0).tolist()
        if math.isfinite(weight):
            row = number_row(LABELS, MADE, update.step, self.context.clock.next_order(), -weight / scale)
            self.rows.append(replace(row, phase="grad", summary=Summary(n=round(n), sum=-weight / scale)))

    def _replayed_gap(self, update: Update, factors: Sequence[float]) -> float | None:
        """Return the relative difference of the used gradient to the one with each micro-batch times its factor."""
        unique = {id(p): p for root in self.context.names.roots() for p in root.parameters()}
        able = [p for p in unique.values() if p.requires_grad and p.is_leaf and p.numel() <= MAX_ELEMENTS]
        parameters = able[:: -(-len(able) // PARAMETERS)] if able else []
        used: dict[int, Tensor] = {}
        right: dict[int, Tensor] = {}
        try:
            for microbatch, factor in zip(update.microbatches, factors, strict=True):
                replayed = self.context.replayer.run(microbatch, parameters)
                for at, gradient in enumerate(replayed.grads):
                    if gradient is not None:
                        wide = gradient.to(wide_dtype(gradient.device))
                        used[at] = used[at] + wide if at in used else wide
                        right[at] = right[at] + wide * factor if at in right else wide * factor
        except (ReplayImpossible, RuntimeError):
            return None
        if not used:
            return None
        sizes = to_host([right[at].square().sum() for at in right])
        gaps = to_host([(used[at] - right[at]).square().sum() for at in right])
        gap, size = sum(gaps), sum(sizes)
        return math.sqrt(gap / size) if size > 0 and math.isfinite(gap) and math.isfinite(size) else None


def cross_entropy(root: Tensor) -> tuple[Any, int] | None:
    """Return the only node of a cross-entropy near a loss, and its dimension of classes; None if there is not one."""
    found: list[Any] = []
    seen: set[Any] = set()
    level = [root.grad_fn] if root.grad_fn is not None else []
    while level and len(seen) < MAX_NODES:
        following: list[Any] = []
        for node in level:
            if node in seen:
                continue
            seen.add(node)
            if type(node).__name__ in _LOSSES:
                found.append(node)
            else:
                following += [after for after, _ in node.next_functions if after is not None]
        level = following
    return (found[0], _LOSSES[type(found[0]).__name__]) if len(found) == 1 else None
