"""The loss-scale diary: what the scaler knew at each step, and which gradients were too large for the scale."""

from __future__ import annotations

from hypocenter.nouns import Reading
from hypocenter.session.observer import Observer, Update
from hypocenter.session.sentinel import scalar_reading
from hypocenter.tap.scaled import ScalerState


class Diary(Observer):
    """Writes the rows that hypocenter.detect.diary describes."""

    def before_update(self, update: Update) -> None:
        """Note the state of the scaler that is about to step."""
        if update.scaled is not None:
            self.rows += self._facts(update.scaled.state, update.step)

    def _facts(self, state: ScalerState, step: int) -> list[Reading]:
        facts = {"growth_tracker": state.growth_tracker}
        return [
            scalar_reading(f"loss_scale.{name}", "scaler", float(value), step, self.context.clock.next_order())
            for name, value in facts.items()
            if value is not None
        ]
