"""What goes into and comes out of collectives, on the steps of config.collectives: summaries, digests and sketches.

Of calls that Python makes (hypocenter.tap.collectives says which). Results of asynchronous calls are taken when the
program waits for them. All is reduced on the device and fetched together before the update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.config import Config
from hypocenter.detect.collective_rows import BY_RANK_IN, BY_RANK_OUT, PER_STEP, chosen
from hypocenter.nouns import Reading, replace
from hypocenter.schedule import parse
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.exact_values import Exact
from hypocenter.summary.reducers.torch import TorchReducer
from hypocenter.tap import collectives
from hypocenter.tap.collectives import Call, Listener

_WITHOUT_VALUES = frozenset({"barrier"})


@dataclass(slots=True, kw_only=True)
class _Value:
    """One tensor, or one rank's part of it, that was read."""

    call: Call
    number: int  # n-th of this op in its group in the step
    port: str
    order: int
    microbatch: int
    ticket: int
    exact: int
    dtype: str
    shape: tuple[int, ...]
    site: str


class CollectiveValues(Observer, Listener):
    """Summarises tensors of collectives, from the first forward of a scheduled step to its update."""

    needs = "ranks"

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether values of collectives are wanted at some steps."""
        return config.collectives != "never"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = parse(context.config.collectives)
        self._reducer, self._exact = TorchReducer(), Exact()
        self._values: list[_Value] = []
        self._numbers: dict[int, tuple[Call, int]] = {}  # id(call) -> it, and that it is n-th of its group
        self._counts: dict[object, int] = defaultdict(int)
        self._unlisten: Callable[[], None] = lambda: None
        self._is_on = self._is_listening = False
        self._is_over = False  # the step's check has been made

    def attach(self) -> Callable[[], None]:
        """Listen to collectives, if there is a schedule and more than one rank; returns the undo."""
        self._listen()
        return lambda: self._unlisten()

    def _listen(self) -> None:
        context = self.context
        if not self._is_listening and context.config.collectives != "never" and context.rank()[1] > 1:
            self._unlisten = collectives.listen(self, names=context.names, fail=context.warn)
            self._is_listening = True
            self._is_on = self._is_due(context.clock.step) and not context.tape.microbatches

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Begin to listen; after the check of this step nothing counts any more, as a replay makes the same calls."""
        self._listen()
        if self._is_on:
            self.context.ride(torch.zeros(0, device="cpu"), self._checked)

    def _checked(self, _: Sequence[float]) -> None:
        self._is_over = True

    def before(self, call: Call) -> None:
        """Read the tensors that go into a collective."""
        if not self._is_on or self._is_over or call.op in _WITHOUT_VALUES or len(call.ranks) < 2:
            return
        key = (call.op, call.reduce, call.group, call.peer)
        number, self._counts[key] = self._counts[key], self._counts[key] + 1
        if torch._C._current_graph_task_id() == -1 and not self.context.clock.recording and not self._in_step():
            return  # but counted: a later stage receives before its first forward what an earlier one sent after its
        if sum(self._counts.values()) > PER_STEP:
            return
        self._numbers[id(call)] = call, number
        call.wants_result = True
        if call.op == "broadcast" and call.peer != self.context.rank()[0]:
            return  # what lies in the tensor is overwritten
        self._read(call, "in", call.inputs, by_rank=call.op in BY_RANK_IN)

    def done(self, call: Call) -> None:
        """Read the tensors that came out of a collective."""
        if not self._is_on or self._numbers.get(id(call), (None, 0))[0] is not call:
            return
        if call.op == "reduce" and call.peer != self.context.rank()[0]:
            return  # not defined there
        self._read(call, "out", call.outputs, by_rank=call.op in BY_RANK_OUT)

    def before_update(self, update: Update) -> None:
        """Fetch the numbers and write their rows; listen in the next step if it is due."""
        values, self._values = self._values, []
        self._numbers.clear()
        self._counts.clear()
        if self._is_on:
            self._is_on = False
            collectives.forget_results()
            summaries, facts = self._reducer.drain(), self._exact.drain()
            axes = {ranks: axis for axis, ranks in self.context.place().groups.items()}
            for value in values:
                digest, sketch = facts[value.exact]
                summary = replace(summaries[value.ticket], sketch=sketch or None)
                self.rows.append(
                    Reading(
                        step=update.step, microbatch=value.microbatch, phase="comm", site=value.site, port=value.port,
                        order=value.order, call=value.number, dtype=value.dtype, shape=value.shape, summary=summary,
                        op=".".join(filter(None, (value.call.op, value.call.reduce))), digest=digest,
                        names=_names(value.call, axes),
                    )
                )  # fmt: skip

    def after_update(self, update: Update) -> None:
        """Listen in the next step, which begins now, if it is due."""
        self._is_on, self._is_over = self._is_listening and self._is_due(update.step + 1), False

    def _in_step(self) -> bool:
        """Return whether this is between a step's first forward and its update: elsewhere is set-up or evaluation."""
        return bool(self.context.tape.microbatches or self.context.clock.microbatch)

    def _read(self, call: Call, side: str, tensors: Sequence[torch.Tensor], *, by_rank: bool) -> None:
        (_, number), clock = self._numbers[id(call)], self.context.clock
        with torch.no_grad(), _disable_current_modes():
            picked = list(_parts(tensors, call, number, clock.step) if by_rank else enumerate(tensors))
            picked = [(i, t) for i, t in picked if t.numel() and t.layout == torch.strided]
            tickets = self._exact.add([t.detach().reshape(-1) for _, t in picked])  # flat: shapes in and out may differ
            for (index, tensor), exact in zip(picked, tickets, strict=True):
                self._values.append(
                    _Value(
                        call=call, number=number, port=f"{side}[{index}]", order=clock.next_order(), exact=exact,
                        microbatch=clock.microbatch, ticket=self._reducer.add(tensor), site=call.site,
                        dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape),
                    )
                )  # fmt: skip


def _parts(tensors: Sequence[torch.Tensor], call: Call, number: int, step: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (position in the group, that rank's part) of the chosen ranks; nothing if the parts are not told apart."""
    n = len(call.ranks)
    if len(tensors) == 1:
        size = tensors[0].shape[call.dim] if tensors[0].ndim else 0
        if size % n:
            return
        tensors = tensors[0].detach().chunk(n, dim=call.dim)
    if len(tensors) == n:
        yield from ((index, tensors[index].detach()) for index in chosen(n, number, step))


def _names(call: Call, axes: dict[tuple[int, ...], str]) -> tuple[str, ...]:
    axis = axes.get(tuple(call.ranks)) or call.group
    return axis, ",".join(map(str, call.ranks)), call.group, "" if call.peer is None else str(call.peer)
