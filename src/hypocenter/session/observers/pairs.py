"""The law of pairs: what a loss compares belongs to what the model was given. For HC414.

Labels may be made of anything; but where they were made of what the model was given in a micro-batch before, and of
nothing that it is given now, at one micro-batch after the other, each batch is compared with the labels of another.
What the model remembers is given to it, so a task of remembering is none.

What was made of what is for each framework to say: session.torch_pairs, session.mindspore.pairs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypocenter.detect.law_rows import OF_ANOTHER, SITE
from hypocenter.nouns import Source, replace
from hypocenter.session.events import ContextT, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.marks import Marks
from hypocenter.tap.weakly import Ref

FIRST, EACH, LOOKS = 16, 64, 6  # steps from the start; then of each so many the first few
IN_A_ROW = 4  # micro-batches
BACK = 4  # micro-batches that are kept in mind
USUAL = 3  # micro-batches that a mark takes part in: then it is of no one batch
MOST_MARKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """Inputs of modules in a micro-batch before: themselves, and what they were made of."""

    tensors: Sequence[Ref[Any]]
    marks: Marks

    def holds(self, tensor: Any) -> bool:
        """Return whether this tensor was an input."""
        return tensor is not None and any(ref() is tensor for ref in self.tensors)


Labels: TypeAlias = "list[tuple[Any, Marks]]"
"""Each tensor that comes to what modules have computed (None: made on the way), and what it was made of."""


class Pairs(Observer[ContextT]):
    """Writes a row once labels have been those of another batch for some micro-batches in a row."""

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self._before: deque[_Before] = deque(maxlen=BACK)
        self._seen: Counter[Hashable] = Counter()
        self._n_late = self._n_back = 0
        self._source: Source | None = None
        self._is_told = False

    @property
    def is_due(self) -> bool:
        """Whether this step is looked at."""
        step = self.context.clock.step
        return not self._is_told and (step < FIRST or step % EACH < LOOKS)

    def before_update(self, update: Update) -> None:
        """Write the row, once, with the step."""
        if self._n_late >= IN_A_ROW and not self._is_told:
            self._is_told = True
            row = number_row(SITE, OF_ANOTHER, update.step, self.context.clock.next_order(), self._n_late)
            self.rows.append(replace(row, call=self._n_back, source=self._source))

    def judge(self, inputs: Sequence[Any], marks: Marks, labels: Labels, source: Callable[[], Source | None]) -> None:
        """Find out if a micro-batch's labels belong to its inputs.

        Args:
            inputs: tensors that modules were given, parameters left out.
            marks: what they were made of; empty where that is not known.
            labels: what came to what the modules have computed.
            source: the line where they did.
        """
        if not marks:
            self._n_late = 0
            return
        labels = [(each, of) for each, of in labels if not any(each is other for other in inputs)]
        n_back = self._batches_back(marks, labels)
        self._n_late = 0 if not n_back else 1 if n_back != self._n_back else self._n_late + 1
        self._n_back = n_back
        if n_back:
            self._source = source() or self._source
        self._before.append(_Before(tensors=[Ref(each) for each in inputs], marks=marks))
        self._seen.update(marks.union(*(of for _, of in labels)))
        if len(self._seen) > MOST_MARKS:
            self._seen = Counter(dict(self._seen.most_common(MOST_MARKS // 16)))

    def _batches_back(self, inputs: Marks, labels: Labels) -> int:
        """Return how many micro-batches ago the model was given what labels are made of; 0: now, or it is not known.

        What is cut from the same tensor as the inputs is a series, of which any part may be asked for.
        """
        usual = {mark for mark, n in self._seen.items() if n >= USUAL}
        own, n_back = inputs - usual, 0
        if not own:
            return 0
        for tensor, marks in labels:
            fresh = marks - usual
            if fresh & own:
                return 0
            if not fresh or marks & inputs:
                continue
            ago = (
                n for n, each in enumerate(reversed(self._before), 1) if fresh <= each.marks and not each.holds(tensor)
            )
            n_back = n_back or next(ago, 0)
        return n_back
