"""Does the gradient of every micro-batch arrive in what is accumulated, in `.grad` or in `main_grad`? For HC332.

Before and after the backward of a later micro-batch a sample of what a parameter has accumulated is compared, beside a
sample of what autograd hands to it. At steps that are looked at only, for some parameters in turn. Not looked at:
sharded parameters, gradients that kernels add to `main_grad` themselves (`grad_added_to_main_grad`), and those that the
program takes away after each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.accumulated_rows import not_added_rows
from hypocenter.session.observers.grid import wide_dtype
from hypocenter.session.observers.sampled import Deferred, sample

ELEMENTS = 1024  # of a parameter
PARAMETERS = 32  # in one step
DENSE = 8  # steps of several micro-batches that are all looked at; then as often as replicas are
LAST = 3  # later micro-batches of one step that are looked at


class _Watch:
    """One parameter during one backward."""

    def __init__(self, parameter: Tensor, held: Tensor) -> None:
        self.parameter = parameter
        self.before = held.clone()
        self.handed: Tensor | None = None
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        self._node, self._handle = node, node.register_prehook(self._hand_over)

    def _hand_over(self, gradients: Any) -> None:
        try:
            with torch.no_grad(), _disable_current_modes():
                given = sample(gradients[0], ELEMENTS) if isinstance(gradients[0], Tensor) else None
                self.handed = given.clone() if given is not None and self.handed is None else None
        except Exception:  # an unusual gradient must not break the user's backward
            self.handed = None

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()

    def numbers(self) -> Tensor | None:
        """Return how many elements the gradient was to change and how many it did not; None where it cannot be told."""
        after = _accumulated(self.parameter)
        if self.handed is None or after is None or after.shape != self.before.shape or _adds_itself(self.parameter):
            return None
        if self.handed.shape != after.shape:
            return None
        was_to = (self.before + self.handed.to(self.before.dtype)) != self.before
        was_to &= torch.isfinite(self.handed)
        lost = was_to & (after == self.before)
        return torch.stack([was_to.sum(), lost.sum()]).to(wide_dtype(after.device))


@dataclass(frozen=True, slots=True)
class _Parameters:
    n_roots: int
    listed: Sequence[Tensor]


class Arrivals(Observer):
    """Looks at the second to fourth micro-batch of a step."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.replicas)
        self._watches: list[_Watch] = []
        self._known = _Parameters(-1, ())
        self._n_looked = 0
        self._is_several = False
        self._deferred = Deferred(context.ride)

    def attach(self) -> Callable[[], None]:
        """Return the undo, which takes off hooks that are on."""
        return self._let_go

    def _let_go(self) -> None:
        for watch in self._watches:
            watch.remove()
        self._watches = []

    def at_rest(self) -> Iterable[str]:
        """With one micro-batch nothing is added up."""
        return (
            ("before_backward", "after_backward", "before_update", "after_update")
            if not (self._watches or self._is_several or self._deferred.waiting)
            else ()
        )

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Sample what was accumulated so far, before the backward of a micro-batch that is not the first."""
        if self._watches:
            self._let_go()
        clock = self.context.clock
        if not 1 <= clock.microbatch <= LAST or not (self._n_looked < DENSE or self._due(clock.step)):
            return
        self._is_several = True
        with torch.no_grad(), _disable_current_modes():
            for parameter in self._chosen():
                held = _accumulated(parameter)
                if held is not None and not _adds_itself(parameter):
                    self._watches.append(_Watch(parameter, held))

    def _chosen(self) -> Sequence[Tensor]:
        roots = self.context.names.roots()
        if len(roots) != self._known.n_roots:
            unique = {id(p): p for root in roots for p in root.parameters()}
            self._known = _Parameters(len(roots), tuple(unique.values()))
        able = [p for p in self._known.listed if p.requires_grad and p.is_leaf and not hasattr(p, "to_local")]
        stride = -(-len(able) // PARAMETERS) if able else 1
        return able[self.context.clock.step % stride :: stride]

    def after_backward(self) -> None:
        """Find out if what was accumulated has changed: backward is over."""
        watches = self._watches
        if not watches:
            return
        self._let_go()
        with torch.no_grad(), _disable_current_modes():
            counted = [(w.parameter, n) for w in watches if (n := w.numbers()) is not None]
        if not counted:
            return
        clock, device = self.context.clock, counted[0][1].device
        step, microbatch = clock.step, clock.microbatch
        labels = [self.context.label(parameter) for parameter, _ in counted]

        def read(host: Sequence[float]) -> None:
            pairs = [(name, round(n), round(lost)) for name, n, lost in zip(labels, host[::2], host[1::2], strict=True)]
            self.rows += not_added_rows([p for p in pairs if p[1]], step, microbatch, clock.next_order)

        self._deferred.add(torch.cat([n.to(device) for _, n in counted]), read)

    def before_update(self, update: Update) -> None:
        """Read the counts that were on their way to the host."""
        if self._deferred.waiting:
            self._deferred.read()

    def after_update(self, update: Update) -> None:
        """Count the steps that were looked at."""
        self._n_looked += self._is_several
        self._is_several = False


def _accumulated(parameter: Tensor) -> Tensor | None:
    """Return a sample of what a parameter has accumulated (Megatron's `main_grad` where there is one), or None."""
    main = getattr(parameter, "main_grad", None)
    held = main if isinstance(main, Tensor) else parameter.grad
    if held is None or held.layout != torch.strided or hasattr(held, "to_local") or held.shape != parameter.shape:
        return None
    return sample(held.detach(), ELEMENTS)


def _adds_itself(parameter: Tensor) -> bool:
    """Return whether a fused kernel adds to `main_grad`, so that what autograd hands over is a dummy."""
    return bool(getattr(parameter, "grad_added_to_main_grad", False))
