"""Units of a layer of a MindSpore model that are the same and get the same gradient. For HC254."""

from __future__ import annotations

import numpy as np

from hypocenter.formats import FORMATS
from hypocenter.session.alike import AT, alike_row, are_alike
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Part
from hypocenter.tap.mindspore.gradients import dtype_name, host


class AlikeUnits(Part):
    """Writes a row for the first weight all of whose rows are equal and have equal gradients, neither of them 0."""

    until = AT[-1]

    def before_update(self, update: Update) -> None:
        """Look at the weights of two early steps; the session has waited for the gradients already."""
        if update.step not in AT or update.scaled is not None:
            return
        found: list[str] = []
        for parameter, gradient in update.gradients:
            if len(parameter.shape) < 2 or parameter.shape[0] < 2 or parameter.shape != gradient.shape:
                continue
            weight = host(parameter)
            if not np.array_equal(weight[0], weight[-1]):
                continue  # the usual case, in two rows
            form = FORMATS.get(dtype_name(gradient))
            if form is not None and are_alike(weight, host(gradient), form.eps):
                found.append(self.context.label(parameter))
        if found:
            self.rows.append(alike_row(found, update.step, self.context.clock.next_order()))
