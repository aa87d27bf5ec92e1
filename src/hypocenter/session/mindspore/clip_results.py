"""Whether what a clip gives back is what the optimizer is given: it changes nothing by itself. For HC238."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypocenter.detect.law_rows import CLIPPED_IN_VAIN, SITE, THROWN_AWAY
from hypocenter.nouns import Reading, replace
from hypocenter.session.events import Update
from hypocenter.session.observers.clip_calls import LOOKED
from hypocenter.session.observers.optimizer_rows import number_row


class ClipResults:
    """Remembers which gradients the clips of a step were given, until its update."""

    def __init__(self) -> None:
        self._given: list[Sequence[Any]] = []
        self._n_looked = self._n_in_vain = 0

    def clips(self, gradients: Sequence[Any]) -> None:
        """Remember gradients that are about to be clipped."""
        if self._n_looked < LOOKED:
            self._given.append(gradients)

    def row(self, update: Update, next_order: Callable[[], int]) -> Reading | None:
        """Return a row if each of the first updates with a clip used the very tensors that the clip was given."""
        given, self._given = self._given, []
        if not given or not update.gradients or self._n_looked >= LOOKED:
            return None
        self._n_looked += 1
        unclipped = {id(gradient) for gradients in given for gradient in gradients}
        self._n_in_vain += all(id(gradient) in unclipped for _, gradient in update.gradients)
        if self._n_in_vain < LOOKED:
            return None
        row = number_row(SITE, CLIPPED_IN_VAIN, update.step, next_order(), LOOKED, module=THROWN_AWAY)
        return replace(row, call=len(update.gradients))
