"""Backwards of one update between which the program moves its parameters: each is an evaluation by itself.

Sharpness-aware optimizers go back once, move the parameters, go back again, put them where they were and update. Such
backwards do not add up to one gradient, and none can be done again once the parameters have moved. Programs that do so
are known by their first steps, in which the bits of all parameters are compared after a backward and before the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypocenter.tap import digest
from hypocenter.tap.clock import Clock
from hypocenter.tap.gradients import local
from hypocenter.tap.names import NameMap

LEARNED = 2  # steps after which it is known whether a program moves its parameters between backwards


@dataclass(frozen=True, slots=True)
class _Parameters:
    """All parameters when a backward was over.

    What is sharded (ZeRO-3, FSDP) has another shape while it is gathered, and no memory once it is let go: it is
    compared only in the same shape.
    """

    held: list[torch.Tensor]
    shapes: list[torch.Size | None]  # None: it has no memory now
    bits: list[int | None]

    @classmethod
    def now(cls, held: list[torch.Tensor]) -> _Parameters:
        shapes = [None if _is_let_go(p) else p.shape for p in held]
        there = iter(digest.to_host(digest.digests([p for p, s in zip(held, shapes, strict=True) if s is not None])))
        return cls(held, shapes, [None if shape is None else next(there) for shape in shapes])

    def have_moved(self) -> bool:
        now = _Parameters.now(self.held)
        compared = zip(self.shapes, now.shapes, self.bits, now.bits, strict=True)
        return any(before != after for shape, shape_now, before, after in compared if shape == shape_now)


def _is_let_go(parameter: torch.Tensor) -> bool:
    values = local(parameter)
    return values is not None and values.numel() > 0 and values.untyped_storage().nbytes() == 0


class Evaluations:
    """Finds out whether the program moves its parameters between the backward passes of one update.

    Attributes:
        moves: it was seen to do so: what a backward computed has to be checked before they move again.
    """

    def __init__(self, names: NameMap, clock: Clock) -> None:
        self._names, self._clock = names, clock
        self.moves = False
        self._last: _Parameters | None = None

    @property
    def is_learning(self) -> bool:
        """Whether this is one of the first two backwards of one of the first steps."""
        return self._clock.step < LEARNED and self._clock.microbatch < 2

    def have_moved(self) -> bool:
        """Return whether the parameters have moved since the last backward of this update. Ask once after each.

        By their bits, for a write through `.data` leaves no trace in the version counters.
        """
        last, self._last = self._last, None
        has_moved = last is not None and last.have_moved()
        self.moves = self.moves or has_moved
        return has_moved

    def after_backward(self) -> None:
        """Note where the parameters are, in a program that may move them."""
        self._last = _Parameters.now([p for _, p in self._names.parameters() if p.requires_grad])

    def end_update(self) -> None:
        """Forget where the parameters were: an optimizer has moved them, as it should."""
        self._last = None
