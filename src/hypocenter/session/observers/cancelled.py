"""The law of ways: what comes back to a parameter on several ways does not always add up to exactly nothing. For HC233.

A gradient of 0 has many healthy reasons: a term with the weight 0, units that are dead, an expert without tokens. There
each way brings 0. Where two ways bring something, and their sum is 0 to the last bit at each of the first updates, the
loss holds a difference of a thing and itself: it does not depend on the parameter, though it is computed from it. So it
is with the bias of a score of which two are subtracted, on purpose; not with the weight beside it, nor with all that a
module has. A table of such biases, one for each user, is one too: it is looked up and added, and nothing else is done
with it before its ways meet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.detect.law_rows import CANCELLED
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.weakly import Ref

FIRST = 4  # updates of an optimizer, at each of which the gradient is 0
LAST = 16  # step
MOST = 16  # parameters whose ways are looked at, ...
MOST_ELEMENTS = 1 << 24  # ... and elements of them all: the sums of their ways are kept for one step
NEAR = 1e-6  # of the largest way: three and more may be added up in another order
_SAME_VALUES = frozenset({"TBackward0", "TransposeBackward0", "ToCopyBackward0", "ViewBackward0", "PermuteBackward0"})
_ADDED = frozenset({
    "Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather", "Select", "Slice", "Expand", "Squeeze", "Unsqueeze",
    "Reshape", "ReshapeAlias", "UnsafeView", "Alias", "Clone", "T", "Transpose", "Permute", "View", "ToCopy",
    "Add", "Sub", "Neg", "Sum", "Mean",
})  # fmt: skip
"""What adds up parts of a thing, and does nothing else with it."""

_Ways = dict[Any, list[tuple[Any, int]]]  # node of the graph -> nodes that go back to it, and by which of their inputs


@dataclass(slots=True)
class _Seen:
    """Of one optimizer."""

    n_updates: int = 0
    zero: set[str] = field(default_factory=set)  # parameters whose gradient was 0 at each update so far


class Cancelled(Observer):
    """Writes a row for the matrices whose gradients, on all ways to them, add up to exactly 0."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)  # by id of the first parameter
        self._asked: list[Ref[Tensor]] = []  # whose ways are looked at in this step
        self._brought: defaultdict[int, list[Tensor]] = defaultdict(list)  # by id of these: norms of what ways bring
        self._sums: dict[int, Tensor] = {}  # by id of these: of all that they bring
        self._handles: list[Any] = []

    def attach(self) -> Callable[[], None]:
        """Return the undo, which takes hooks off."""
        return self._let_go

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Listen to the ways."""
        asked = [p for each in self._asked if (p := each()) is not None and p.requires_grad]
        if not asked:
            return
        ends = {id(p): torch.autograd.graph.get_gradient_edge(p).node for p in asked}
        ways = _ways(roots)
        for key, end in ends.items():
            while len(before := ways.get(end, [])) == 1 and before[0][0].name() in _SAME_VALUES:
                end = before[0][0]  # all ways come through it
            if len(before) > 1 and _meet_as_they_were([node for node, _ in before], ways):
                continue
            for node, at in before if len(before) > 1 else ():
                self._handles.append(node.register_hook(self._listener(key, at)))

    def after_backward(self) -> None:
        """Take the hooks off."""
        self._let_go()

    def before_update(self, update: Update) -> None:
        """Judge, or see whether anything is to be looked at in the next step."""
        norms = update.check.grad_norms
        if not norms or not update.parameters or not update.check.is_finite:
            return
        seen = self._seen[id(update.parameters[0])]
        if seen.n_updates > FIRST:
            return
        zero = {name for name, norm in norms.items() if norm == 0.0}
        seen.zero = seen.zero & zero if seen.n_updates else zero
        seen.n_updates += 1
        if not seen.zero or len(zero) == len(norms):
            return
        if seen.n_updates == FIRST:
            held = [p for p in update.parameters if self.context.label(p) in seen.zero]
            matrices = [p for p in held if p.dim() > 1 and p.numel() > 1 and not hasattr(p, "to_local")]
            sizes = accumulate(p.numel() for p in matrices[:MOST])
            self._asked = [Ref(p) for p, size in zip(matrices, sizes, strict=False) if size <= MOST_ELEMENTS]
        elif seen.n_updates > FIRST:
            self._judge(update, seen.zero)

    def _judge(self, update: Update, zero: set[str]) -> None:
        brought, sums, self._brought, self._sums, self._asked = self._brought, self._sums, defaultdict(list), {}, []
        n_ways: dict[str, int] = {}
        for parameter in update.parameters:
            name, of_ways = self.context.label(parameter), brought.get(id(parameter), [])
            if len(of_ways) < 2 or name not in zero:
                continue
            *found, total = torch.stack([*of_ways, _norm(sums[id(parameter)])]).tolist()  # the host waits, in one step
            n = sum(0.0 < each < math.inf for each in found)
            owner = self.context.framework.owner(self.context.names.roots(), parameter)
            beside = [] if owner is None else [p for p in owner.parameters(recurse=False) if p.requires_grad]
            if n > 1 and total <= NEAR * max(found) and all(self.context.label(p) in zero for p in beside):
                n_ways[name] = n
        if n_ways:
            (name, n), order = next(iter(n_ways.items())), self.context.clock.next_order()
            self.rows.append(number_row(name, CANCELLED, update.step, order, n, call=len(n_ways)))

    def _listener(self, key: int, at: int) -> Callable[[Any, Any], None]:
        def listen(gradients: Sequence[Tensor | None], _: Any) -> None:
            try:
                gradient = gradients[at] if at < len(gradients) else None
                if gradient is None or gradient.layout != torch.strided:
                    return
                with torch.no_grad(), _disable_current_modes():
                    gradient, before = gradient.detach(), self._sums.get(key)
                    self._brought[key].append(_norm(gradient))
                    self._sums[key] = gradient if before is None else before + gradient
            except Exception:  # an unusual gradient must not break the user's backward
                self._brought.pop(key, None)

        return listen

    def _let_go(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _ways(roots: Sequence[Tensor]) -> _Ways:
    """Return, for each node of a graph, where the engine comes to it from."""
    found: _Ways = {}
    waiting = [node for root in roots if (node := root.grad_fn) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for at, (other, _) in enumerate(node.next_functions):
            if other is None:
                continue
            found.setdefault(other, []).append((node, at))
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return found


def _meet_as_they_were(begun: Sequence[Any], ways: _Ways) -> bool:
    """Return whether ways that begin at these nodes all come to one that has only been added up until then."""
    together: set[Any] | None = None
    for first in begun:
        reached, waiting = set[Any](), [first]
        while waiting:
            node = waiting.pop()
            if node not in reached and node.name().rstrip("0123456789").removesuffix("Backward") in _ADDED:
                reached.add(node)
                waiting += [after for after, _ in ways.get(node, ())]
        together = reached if together is None else together & reached
    return bool(together)


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dtype=torch.float32)
