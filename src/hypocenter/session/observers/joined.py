"""The law "apart": two models that lay in memories of their own go on to do so. For HC265.

A target network that is refreshed by `t.data = p.data`, or a copy that a checkpoint's own tensors were put into, is the
trained model from then on: it moves at each update. Models that share their memory from the beginning may mean it. So a
parameter that nothing trains counts only where it was seen in a memory of its own at one look, and in that of a trained
parameter of another model at two looks after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from hypocenter import schedule
from hypocenter.detect.law_rows import JOINED
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.tape import storage_of

EVERY, OFTEN_UP_TO = 4, 128  # steps; later those of `doubling`
LOOKS = 2  # at which they are one

_Place = tuple[int, int, Any]  # storage, offset, shape


@dataclass(slots=True)
class _Seen:
    """A parameter that lay in a memory of its own: the last step at which it did, and steps at which it did not."""

    apart: int
    joined: list[int] = field(default_factory=list[int])


class Joined(Observer):
    """Writes a row for the first parameter of another model that has come to lie in the memory of a trained one."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_doubling = schedule.parse("doubling")
        self._seen: WeakKeyDictionary[nn.Module, dict[str, _Seen]] = WeakKeyDictionary()  # by name
        self._is_told = False

    def at_rest(self) -> Iterable[str]:
        """It was told once."""
        return ("before_update",) if self._is_told else ()

    def before_update(self, update: Update) -> None:
        """Look at which memory each parameter of the other models lies in."""
        step = update.step
        if step % EVERY or (step > OFTEN_UP_TO and not self._is_doubling(step)):
            return
        roots = [root for root in self.context.names.roots() if next(root.parameters(), None) is not None]
        if len(roots) < 2 or self._is_told:
            return
        ids = update.ids
        others = [(root, *each) for root in roots for each in root.named_parameters() if id(each[1]) not in ids]
        trained = {place: p for p in update.parameters if (place := _place(p))[0]}
        joined = list(self._joined(others, trained, update.step))
        if joined:
            self._is_told = True
            (parameter, other, seen), order = joined[0], self.context.clock.next_order()
            label, since = self.context.label, update.step - seen.joined[0]
            row = number_row(label(parameter), JOINED, update.step, order, len(joined), call=since)
            self.rows.append(replace(row, names=(label(other), str(seen.apart))))

    def _joined(
        self, others: Iterable[tuple[nn.Module, str, Tensor]], trained: Mapping[_Place, Tensor], step: int
    ) -> Iterator[tuple[Tensor, Tensor, _Seen]]:
        """Yield those of the others that lie in the memory of a trained one, this one, and since when."""
        for root, name, parameter in others:
            known, other = self._seen.setdefault(root, {}), trained.get(_place(parameter))
            if other is None:
                known[name] = _Seen(step)
            elif name in known:
                known[name].joined.append(step)
                if len(known[name].joined) >= LOOKS:
                    yield parameter, other, known[name]


def _place(parameter: Tensor) -> _Place:
    if not parameter.numel():
        return 0, 0, ()
    return storage_of(parameter), int(parameter.storage_offset()), parameter.shape
