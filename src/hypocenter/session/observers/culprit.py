"""Names the parameter at which a skipped step's gradients first went bad: the last one in the order of the model.

Backward runs from the end of the model to its start and carries bad values along: every parameter before the culprit is
bad too. Clipping spreads one bad norm to all gradients, so what was seen before it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypocenter.detect.window import CULPRIT
from hypocenter.nouns import Reading, Summary
from hypocenter.session.check import Check
from hypocenter.session.events import Names, Observed, Observer, Update


class Culprit(Observer[Observed]):
    """Writes one row at a step whose scaled gradients are not finite."""

    needs = "scaler"

    _before_clip: tuple[str, ...] = ()

    def seen_before_clip(self, parameters: Sequence[Any], check: Check) -> None:
        """Remember which gradients were bad before clipping made all of them bad."""
        self._before_clip = self._before_clip or tuple(check.bad_params)

    def before_update(self, update: Update) -> None:
        """Write a row that names the culprit of a step that the scaler is about to skip."""
        bad, self._before_clip = self._before_clip or tuple(update.check.bad_params), ()
        if update.scaled is None or not update.check.bad_params:
            return
        name = last_in_model(self.context.names, bad)
        if name:
            self.rows.append(
                Reading(
                    step=update.step,
                    microbatch=0,
                    phase="scaler",
                    site=name,
                    port=CULPRIT,
                    order=self.context.clock.next_order(),
                    summary=Summary(n=1, n_nan=1),
                )
            )


def last_in_model(names: Names, labels: Iterable[str]) -> str:
    """Return the parameter of these that the model has last; "" when it has none of them."""
    wanted = set(labels)
    return next((name for name, _ in reversed(names.parameters()) if name in wanted), "")
