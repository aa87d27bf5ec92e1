"""A Trainer that makes one mean of its micro-batches is not given a mean of each. For HC232.

What the last sum of a loss hands back in backward are the weights of its terms, with whatever the program divides by:
they add up to 1 where the loss is a mean of its own terms, and to less where it is divided by those of all
micro-batches. Cross-entropies that are no sum of terms: `token_weights`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.detect.law_rows import NOT_DIVIDED, SITE, UNBALANCED
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.trainers import calling_trainer
from hypocenter.tap.gradients import to_host

TIMES = 2  # steps in a row
LAST = 8  # step
NEAR = 1e-3  # of 1
_OF_NUMBERS = frozenset({"DivBackward0", "MulBackward0", "ToCopyBackward0", "CloneBackward0", "ViewBackward0"})
_SUMS = frozenset({"SumBackward0", "MeanBackward0"})  # over all dimensions
TERMS = "terms"


class TrainerMeans(Observer):
    """Writes a row, once, where the micro-batches of a Trainer are means that nobody divides."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._handle: Any = None
        self._weights: list[Tensor] = []  # of all terms of each micro-batch, together
        self._n_times = 0

    def attach(self) -> Callable[[], None]:
        """Return the undo, which takes off a hook that is on."""
        return self.after_backward

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Listen at the sum of this loss."""
        self.after_backward()
        if "transformers" in sys.modules and len(roots) == 1 and (node := _last_sum(roots[0])) is not None:
            self._handle = node.register_hook(self._heard)

    def after_backward(self) -> None:
        """Take the hook off."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def before_update(self, update: Update) -> None:
        """See whether each micro-batch was a mean."""
        weights, self._weights = self._weights, []
        n, scale = len(weights), (update.scaled.state.scale if update.scaled is not None else 1.0) or 1.0
        if n < 2 or n != len(update.microbatches) or n == self.context.rank()[1] or self._n_times >= TIMES:
            return  # over ranks each counts as often as there are ranks
        trainer = calling_trainer(sys._getframe(1))
        if trainer is None or trainer.args.gradient_accumulation_steps != n:
            return
        are_means = all(math.isclose(each, scale, rel_tol=NEAR) for each in to_host(weights))
        self._n_times = self._n_times + 1 if are_means else 0
        if self._n_times == TIMES:
            order = self.context.clock.next_order()
            row = number_row(SITE, UNBALANCED, update.step, order, float(n), call=TIMES - 1, module=NOT_DIVIDED)
            self.rows.append(replace(row, names=(type(trainer).__name__,), op=TERMS))

    def _heard(self, given: Any, _: Any) -> None:
        try:
            with torch.no_grad(), _disable_current_modes():
                self._weights.append(given[0].sum(dtype=torch.float32))
        except Exception:  # an unusual gradient must not break the user's backward
            self._weights = []


def _last_sum(root: Tensor) -> Any:
    """Return the node of the sum that a loss is, but for what it is divided by and multiplied with; else None."""
    node = root.grad_fn
    while node is not None and node.name() in _OF_NUMBERS:
        following = [after for after, _ in node.next_functions if after is not None]
        node = following[0] if len(following) == 1 else None
    return node if node is not None and node.name() in _SUMS else None
