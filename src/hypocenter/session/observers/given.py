"""The law "given": what a forward was given stays until its backward has used it. For HC264.

Autograd keeps a reference to what a backward needs, no copy. NumPy, a loader that fills its buffer again and kernels of
extensions write there unseen. Some values of each input are kept at some steps, and compared when backward is over. An
input that has changed counts only where the forward, done again, saves it for backward: others may be written over as
soon as they were read.

How values are kept and what is saved is for each framework to say: session.torch_given, session.mindspore.given.
"""

from __future__ import annotations

from typing import Any

from hypocenter import schedule
from hypocenter.detect.law_rows import GIVEN_CHANGED
from hypocenter.nouns import Reading
from hypocenter.session.events import ContextT, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row

ELEMENTS = 256  # of an input
EVERY = 8  # steps, beside those of `doubling` and the audited ones
MOST_PROOFS = 4  # replays; the first changed input that backward needs is told, and no other


class Given(Observer[ContextT]):
    """Writes a row for an input that was written over before its backward had used it.

    Attributes:
        changed: inputs of this step, whatever the framework knows of each, that hold other values than were kept.
    """

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._n_proofs = 0
        self.changed: list[Any] = []

    # for a framework to say

    def look(self, *, is_due: bool) -> None:
        """Keep values of the inputs of the step that begins, or of none any more."""
        raise NotImplementedError

    def is_needed(self, changed: Any) -> bool:
        """Whether a forward that is done again keeps for its backward what has changed of this input."""
        raise NotImplementedError

    def row(self, changed: Any, step: int) -> Reading:
        """Tell of it: see `told`."""
        raise NotImplementedError

    # what is the same for all

    def told(self, site: str, step: int, n_changed: int, n_looked: int, owner: str) -> Reading:
        """The row that HC264 reads, but for the input's format and shape, and its micro-batch in `op`."""
        order = self.context.clock.next_order()
        return number_row(site, GIVEN_CHANGED, step, order, n_changed, call=n_looked, module=owner)

    def before_update(self, update: Update) -> None:
        """Tell of the first input that has changed and that backward needed."""
        changed = self.changed[:]
        self.changed.clear()
        for each in changed:
            if self._n_proofs == MOST_PROOFS or not self.context.config.replay:
                break
            self._n_proofs += 1
            if self.is_needed(each):
                self._n_proofs = MOST_PROOFS
                self.rows.append(self.row(each, update.step))

    def after_update(self, update: Update) -> None:
        """Look at the next step, or not."""
        step = update.step + 1
        is_due = step % EVERY == 0 or (step < EVERY and self._is_due(step)) or self.context.audits.is_due(step)
        self.look(is_due=is_due and self._n_proofs < MOST_PROOFS)
