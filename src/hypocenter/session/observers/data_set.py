"""Whether reading a data set changes it, and its fields stay together: asked in a forked child. For HC415.

The first batch of a pass of a loader that feeds training is read again, in a child that ends then, while training goes
on; see hypocenter.session.data_set. What cannot be asked without a trace is not asked.
"""

from __future__ import annotations

import functools
import inspect
import time
from dataclasses import replace
from types import CodeType
from typing import Any, cast

from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

from hypocenter.config import Config
from hypocenter.detect.law_rows import DATA_SET, SITE
from hypocenter.nouns import Source
from hypocenter.session.data_set.asked import TOGETHER, Asked, Broken, decoded, encoded
from hypocenter.session.data_set.child import Question
from hypocenter.session.data_set.held import is_private
from hypocenter.session.data_set.laws import broken_laws
from hypocenter.session.data_set.may_fork import may_fork
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.loader_batches import Begun
from hypocenter.tap.source import source_of

MOST = 4  # looks of a process
SECONDS = 1.0  # that forks and looks for answers may take here
CHILD_S = 10.0  # after which a child is ended
LAST_S = 2.0  # that the last one is waited for in the end
_SHARE = 0.4  # of its time, in which the child begins to read


class DataSet(Observer):
    """Writes a row for each law that the data set of a training loader breaks, once."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_asked, self._spent_s = 0, 0.0
        self._waiting: tuple[Question, Asked, int] | None = None  # with the step at which it was asked
        self._told = set[tuple[str, str]]()

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Where steps may be done again, samples may be read again."""
        return config.looks_at_relations

    def before_update(self, update: Update) -> None:
        """Look for an answer, and ask about the pass that has begun since the update before, if one has."""
        begun = self.context.begun()
        if self._waiting is not None:
            self._look(0.0)
            return
        if begun is None or self._n_asked == MOST or self._spent_s > SECONDS:
            return
        asked = self._asked(begun)
        if asked is None or not may_fork(self.context.directory, has_workers=begun.n_workers > 0):
            return
        self._n_asked += 1
        began = time.perf_counter()
        try:
            question = Question(lambda: encoded(broken_laws(asked, _SHARE * CHILD_S)), CHILD_S)
            self._waiting = question, asked, update.step
        finally:
            self._spent_s += time.perf_counter() - began

    def at_end(self) -> None:
        """Wait a little for the last one."""
        if self._waiting is not None:
            self._look(LAST_S)
        if self._waiting is not None:
            self._waiting[0].close()

    def _look(self, seconds: float) -> None:
        if self._waiting is None:
            return
        question, asked, step = self._waiting
        question.look(seconds)
        if not question.is_open:
            self._waiting = None
            for broken in decoded(question.answer) if question.answer else ():
                self._tell(broken, asked, step)

    def _asked(self, begun: Begun) -> Asked | None:
        """Return what to ask of a pass; None if nothing can be found out, or must not be asked."""
        dataset = begun.dataset()
        is_plain = begun.collate is default_collate and _is_plain(dataset)
        is_alone = self.context.rank()[1] == 1 or begun.n_workers > 0
        if dataset is None or is_plain or not is_alone or not begun.is_on_host:
            return None
        if not is_private(dataset, begun.collate):
            return None
        return Asked(
            dataset=dataset, collate=begun.collate, indices=begun.indices, is_batched=begun.is_batched,
            is_kept=begun.n_workers == 0 or begun.is_persistent,
        )  # fmt: skip

    def _tell(self, broken: Broken, asked: Asked, step: int) -> None:
        is_of_collate = broken.law == TOGETHER
        what = asked.collate if is_of_collate else _innermost(asked.dataset)
        name, source = _name(what), _source(what, is_of_collate=is_of_collate)
        if (broken.law, name) in self._told:
            return
        self._told.add((broken.law, name))
        order = self.context.clock.next_order()
        now = self.context.clock.step
        row = number_row(SITE, DATA_SET, now, order, len(broken.indices), module=name, call=broken.n_asked)
        names = (str(step), broken.field, broken.other, *broken.indices, "proven" if broken.is_proven else "likely")
        self.rows.append(replace(row, op=broken.law, names=names, source=source))


def _is_plain(dataset: Any) -> bool:
    """Return whether this is a data set of torch's own, of tensors."""
    while type(dataset) is Subset:
        dataset = cast("Any", dataset).dataset
    if type(dataset) is ConcatDataset:
        return all(_is_plain(each) for each in cast("Any", dataset).datasets)
    return type(dataset) is TensorDataset or dataset is None


def _innermost(dataset: Any) -> Any:
    """Return the data set of the program's own in one that torch makes of others."""
    while type(dataset) is Subset:
        dataset = cast("Any", dataset).dataset
    return dataset


def _name(what: Any) -> str:
    while isinstance(what, functools.partial):
        what = cast("Any", what).func
    return getattr(what, "__qualname__", "").rpartition("<locals>.")[2] or type(what).__name__


def _source(what: Any, *, is_of_collate: bool) -> Source | None:
    """Return the line at which what reads an item, or puts items together, is written."""
    while isinstance(what, functools.partial):
        what = cast("Any", what).func
    method = what if is_of_collate and hasattr(what, "__code__") else None
    if method is None:
        names = ("__call__",) if is_of_collate else ("__getitems__", "__getitem__")
        method = next((each for name in names if (each := getattr(type(what), name, None)) is not None), None)
    code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
    return source_of(code.co_filename, code.co_firstlineno, code.co_name) if isinstance(code, CodeType) else None
