"""The law "reference": what a model is held against does not lie in the memory of what is trained. For HC261.

Two models are one where `ref.weight.data = model.weight.data` was said, or `copy.copy(model)`: the reference goes where
the model goes. A Trainer of TRL refuses to be given its model as its `ref_model`, and does not see this. Of models that
no Trainer has nobody knows what they are for: one that plays with the weights as they are may share their memory.
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

from hypocenter import schedule
from hypocenter.detect.law_rows import OWN_REFERENCE
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.trainers import calling_trainer
from hypocenter.tap.names import class_name, unwrap
from hypocenter.tap.tape import storage_of

LAST = 64  # step
LOOKS = 2  # at which it lies there
_REFERENCES = ("ref_model", "teacher_model")  # of a Trainer


class OwnReference(Observer):
    """Writes a row for a reference model with tensors in the memory of what is trained."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._since: list[int] = []  # steps at which it lay there

    def before_update(self, update: Update) -> None:
        """Compare the memory of what this update moves with that of the reference of the Trainer that makes it."""
        if len(self._since) >= LOOKS or not self._is_due(update.step):
            return
        trainer = calling_trainer(sys._getframe(1))
        trained = getattr(trainer, "model", None)
        for reference in (getattr(trainer, name, None) for name in _REFERENCES):
            if not isinstance(reference, nn.Module) or not isinstance(trained, nn.Module):
                continue
            if unwrap(reference) is not unwrap(trained) and (shared := _shared(reference, update)):
                self._since.append(update.step)
                if len(self._since) == LOOKS:
                    label, order = self.context.label(shared[0]), self.context.clock.next_order()
                    row = number_row(label, OWN_REFERENCE, update.step, order, len(shared), call=self._since[0])
                    self.rows.append(replace(row, op=type(trainer).__name__, module=class_name(unwrap(reference))))
                return


def _shared(reference: nn.Module, update: Update) -> list[Tensor]:
    """Return what this update moves that lies in the memory of the reference."""
    own = {storage_of(p) for p in reference.parameters() if p.numel()} - {0}
    return [p for p in update.parameters if p.requires_grad and p.numel() and storage_of(p) in own]
