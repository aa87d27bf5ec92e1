"""The statistics of a norm are of the batches that are trained on. For HC263.

A batch norm that is called in the mode of training moves its statistics, whoever calls it: an evaluation that forgot
`eval()` puts its own data in. Each such call counts up `num_batches_tracked`, whose version tells how often without a
look at the device. Between two updates of the norm's weight there are as many calls beside those that a backward
follows as ever, or nobody can tell which were for training. Once there were more it is listened to: where gradients
were taken through more of its calls than usual, a model is adapted to a task and tested on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from hypocenter.detect.law_rows import MOVED
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred
from hypocenter.tap.weakly import Ref

USUAL = 4  # updates in a row with the same number of calls
MORE = 2  # calls, than as a rule: one more may be a look at what the model makes
TIMES = 2  # that there were more, and the rule held again after it
NORMS = 4  # that are followed
_COUNTER = "num_batches_tracked"


@dataclass(slots=True)
class _Norm:
    name: str
    norm: Ref[_NormBase]
    counter: Ref[Tensor]
    version: int
    n_backwards: int
    usual: int = 0  # calls between two updates
    beside: int = 0  # of them, more than backwards
    n_usual: int = 0
    more: int = 0  # calls at the update before, beyond the rule
    n_times: int = 0
    n_used: int = 0  # calls that gradients were taken through since the last update, once there were more calls
    stop: Callable[[], None] | None = None  # listening to them
    first: tuple[int, int, float] | None = None  # when there were more for the first time: step, version, batches
    is_over: bool = False


class MovedStatistics(Observer):
    """Writes a row for the first norm that is called in training many times without an update, now and then."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deferred = Deferred(context.ride)
        self._norms: list[_Norm] = []
        self._is_found = self._is_told = False
        self._n_backwards = 0

    def at_rest(self) -> Iterable[str]:
        """Without norms there is nothing to count."""
        return (
            ("before_backward", "before_update")
            if self._is_found and not (self._norms or self._deferred.waiting)
            else ()
        )

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Count a backward: what it goes through was called to train."""
        self._n_backwards += 1

    def on_root(self, model: object) -> None:
        """Look for norms anew, as there is a new model."""
        self._is_found = False

    def before_update(self, update: Update) -> None:
        """Count how often each norm was called since the last update."""
        if self._deferred.waiting:
            self._deferred.read()
        if not self._is_found:
            known = {id(each.counter()): each for each in self._norms}  # their counts go on
            self._is_found = True
            found = [known.get(id(each.counter()), each) for each in self._find(update)]
            for each in self._norms:
                each.is_over = each.is_over or not any(each is one for one in found)
            self._let_go(is_all=False)
            self._norms = found
        if not self._norms:
            return
        own = None
        for each in self._norms:
            norm, counter = each.norm(), each.counter()
            if each.is_over or norm is None or counter is None or norm._buffers.get(_COUNTER) is not counter:
                each.is_over = True
                continue
            own = update.ids if own is None else own
            if id(norm._parameters["weight"]) in own:  # for `norm.weight` Python is asked, at each step
                n, n_backwards = counter._version - each.version, self._n_backwards - each.n_backwards
                each.version, each.n_backwards = counter._version, self._n_backwards
                self._count(each, counter, n, n - n_backwards, update.step)
                each.n_used = 0
        self._let_go(is_all=False)
        self._norms = [each for each in self._norms if not each.is_over]

    def attach(self) -> Callable[[], None]:
        """Return the undo, which ends the listening."""
        return self._let_go

    def _let_go(self, *, is_all: bool = True) -> None:
        for each in self._norms:
            if (is_all or each.is_over) and each.stop is not None:
                each.stop()

    def _listen(self, each: _Norm) -> None:
        def used(_: Tensor) -> None:
            each.n_used += 1

        def heard(_module: Any, _args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                with contextlib.suppress(Exception):  # a tensor that nobody can listen to must not break the forward
                    output.register_hook(used)

        if (norm := each.norm()) is not None:
            each.stop = self.context.after_calls.add(norm, heard)

    def _find(self, update: Update) -> list[_Norm]:
        own = update.ids
        found = [
            (self.context.names.module_name(norm) or type(norm).__name__, norm, norm.num_batches_tracked)
            for root in self.context.names.roots()
            for norm in root.modules()
            if isinstance(norm, _NormBase) and norm.num_batches_tracked is not None and id(norm.weight) in own
        ][:NORMS]
        n = self._n_backwards
        return [_Norm(name, Ref(norm), Ref(counter), counter._version, n) for name, norm, counter in found]

    def _count(self, each: _Norm, counter: Tensor, n: int, beside: int, step: int) -> None:
        if each.n_usual < USUAL:
            each.n_usual = each.n_usual + 1 if (n, beside) == (each.usual, each.beside) else 1
            each.usual, each.beside = n, beside
            return
        before, more = each.more, beside - each.beside
        each.more = max(0, more)
        if before and more > 0:
            each.is_over = True  # it is called now this often and now that
        if each.is_over or more < MORE or not each.usual:
            return
        version, n_used = each.version, each.n_used

        def read(host: Sequence[float]) -> None:
            each.n_times += 1
            if each.first is None:
                each.first = step, version, host[0]
                self._listen(each)
                return
            first, at, n_batches = each.first
            if host[0] - n_batches != version - at or n_used > each.usual:
                each.is_over = True  # somebody has begun them anew: they are measured on purpose; or it is adapted
            elif each.n_times == TIMES:
                each.is_over = True
                if self._is_told:
                    return
                self._is_told = True
                order = self.context.clock.next_order()
                row = number_row(each.name, MOVED, step, order, float(more), module=str(each.usual), call=first)
                self.rows.append(row)

        self._deferred.add(counter.detach().float().reshape(1), read)
