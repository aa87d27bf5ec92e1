"""A Trainer that makes one mean of its micro-batches is not given a mean of each. For HC232.

What the last sum of a loss hands back in backward are the weights of its terms, with whatever the program divides by:
they add up to 1 where the loss is a mean of its own terms, and to less where it is divided by those of all
micro-batches. Terms of padding are no terms: then the weights add up to 1 after the mask that the terms are multiplied
by, or over the labels that get a gradient in the cross-entropy below. Cross-entropies that are no sum of terms:
`token_weights`.
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
from hypocenter.session.observers.token_weights import cross_entropy
from hypocenter.session.trainers import calling_trainer
from hypocenter.tap.gradients import to_host

TIMES = 2  # steps in a row
LAST = 8  # step
NEAR = 1e-3  # of 1
_OF_NUMBERS = frozenset({"DivBackward0", "MulBackward0", "ToCopyBackward0", "CloneBackward0", "ViewBackward0"})
_SUMS = frozenset({"SumBackward0", "MeanBackward0"})  # over all dimensions
TERMS, WEIGHED, TAKEN_ONCE = "terms", "terms that it weighs", "labels, each taken once,"


class TrainerMeans(Observer):
    """Writes a row, once, where the micro-batches of a Trainer are means that nobody divides."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._handles: list[Any] = []
        self._each: Tensor | None = None  # the weight that the sum of this loss gives each of its terms
        self._weights: dict[str, list[Tensor]] = {}  # of each micro-batch, by what is weighed
        self._n_times: dict[str, int] = {}
        self._is_told = False

    def attach(self) -> Callable[[], None]:
        """Return the undo, which takes off hooks that are on."""
        return self.after_backward

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Listen at the sum of this loss, at what its terms are multiplied by, and at its cross-entropy."""
        self.after_backward()
        if "transformers" in sys.modules and len(roots) == 1 and (node := _last_sum(roots[0])) is not None:
            self._listen(node, self._heard)
            if (product := _weighed(node)) is not None:
                self._listen(product, self._heard_weighed)
            if (found := cross_entropy(roots[0])) is not None:
                self._listen(found[0], lambda given, dim=found[1]: self._heard_labels(given, dim))

    def after_backward(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._each = [], None

    def before_update(self, update: Update) -> None:
        """See whether each micro-batch was a mean."""
        weights, self._weights = self._weights, {}
        n, scale = len(update.microbatches), (update.scaled.state.scale if update.scaled is not None else 1.0) or 1.0
        if n < 2 or n == self.context.rank()[1] or self._is_told:
            return  # over ranks each counts as often as there are ranks
        whole = {kind: each for kind, each in weights.items() if len(each) == n}
        trainer = calling_trainer(sys._getframe(1)) if whole else None
        if trainer is None or trainer.args.gradient_accumulation_steps != n:
            return
        host = to_host([weight for each in whole.values() for weight in each])
        are_one = [math.isclose(each, scale, rel_tol=NEAR) for each in host]
        means = [kind for at, kind in enumerate(whole) if all(are_one[at * n : (at + 1) * n])]
        self._n_times = {kind: self._n_times.get(kind, 0) + 1 for kind in means}
        for kind, n_times in self._n_times.items():
            if n_times == TIMES and not self._is_told:
                self._is_told, order = True, self.context.clock.next_order()
                row = number_row(SITE, UNBALANCED, update.step, order, float(n), call=TIMES - 1, module=NOT_DIVIDED)
                self.rows.append(replace(row, names=(type(trainer).__name__,), op=kind))

    def _listen(self, node: Any, heard: Callable[[Tensor], None]) -> None:
        def hook(given: Any, _: Any) -> None:
            try:
                with torch.no_grad(), _disable_current_modes():
                    heard(next(each for each in given if each is not None))
            except Exception:  # an unusual gradient must not break the user's backward
                self._weights = {}

        self._handles.append(node.register_hook(hook))

    def _heard(self, given: Tensor) -> None:
        self._each = given.reshape(-1)[0].float()
        self._weights.setdefault(TERMS, []).append(given.sum(dtype=torch.float32))

    def _heard_weighed(self, given: Tensor) -> None:
        self._weights.setdefault(WEIGHED, []).append(given.sum(dtype=torch.float32))

    def _heard_labels(self, given: Tensor, dim: int) -> None:
        if self._each is not None:
            counted = (given != 0).any(dim=dim if given.dim() > 1 else 0).sum()
            self._weights.setdefault(TAKEN_ONCE, []).append(self._each * counted)


def _last_sum(root: Tensor) -> Any:
    """Return the node of the sum that a loss is, but for what it is divided by and multiplied with; else None."""
    node = root.grad_fn
    while node is not None and node.name() in _OF_NUMBERS:
        following = [after for after, _ in node.next_functions if after is not None]
        node = following[0] if len(following) == 1 else None
    return node if node is not None and node.name() in _SUMS else None


def _weighed(node: Any) -> Any:
    """Return the product of terms and their weights, a mask for one, that a sum is of; None for another sum."""
    after = node.next_functions[0][0] if node.next_functions else None
    if after is None or after.name() != "MulBackward0":
        return None
    return after if sum(other is not None for other, _ in after.next_functions) == 1 else None
