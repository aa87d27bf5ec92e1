"""How a value of the batch came to be: the operations that the program did before it called the model, done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypocenter.optrace import NEGINF
from hypocenter.replay.engine import Replayer
from hypocenter.replay.user_operations import before_the_model, outside_modules
from hypocenter.tap.loader_batches import FromLoader
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tape import Tape
from hypocenter.tap.tracer import OpTracer


class Preparation:
    """Follow bad tensors that came from outside the tape of a step back into its prelude.

    Args:
        tape: of the step; knows which of the user's tensors a leaf stands for.
        prelude: what the program computed before and beside it.
        replayer: does operations again.
        names: the user's names.
        loaded: what is known of the first of these tensors that a DataLoader has handed out.
    """

    def __init__(
        self,
        tape: Tape,
        prelude: Tape,
        replayer: Replayer,
        names: NameMap,
        loaded: Callable[[Sequence[torch.Tensor]], FromLoader | None],
    ) -> None:
        self._tape, self._prelude, self._replayer, self._names, self._loaded = tape, prelude, replayer, names, loaded

    def of(self, leaf: torch.Tensor) -> tuple[OpTracer, torch.Tensor] | None:
        """Return the trace of what made it, and the tensor made again; None if that cannot be done again.

        Args:
            leaf: as the trace of the micro-batch has it, or a value of the program itself.
        """
        place = self._made_on(leaf)
        if place is None:
            return None
        tape, slot = place
        outside = before_the_model if tape is self._prelude else outside_modules([e for _, e in tape.making(slot)])
        tracer = OpTracer(OpContext(self._names.module_name), self._leaf)
        try:
            made = self._replayer.make(tape, slot, mode=tracer, context=tracer.context, outside=outside)
        except Exception:  # the user's own operations run here: anything may come out of it
            return None
        return (tracer, made) if _is_like(made, leaf) else None

    def _made_on(self, leaf: torch.Tensor) -> tuple[Tape, int] | None:
        """Return the tape that has what made it, and its number there; None if none has.

        What needs no gradients is made on the prelude of what the step computes, and of what the step computes.
        """
        for original in (leaf, *self._tape.originals(leaf), *self._prelude.originals(leaf)):
            for tape in (self._prelude, self._tape):
                if (slot := tape.slot(original)) is not None:
                    return tape, slot
        return None

    def is_constant(self, leaf: torch.Tensor) -> bool:
        """Return whether nothing is known to have computed this tensor's infinities: then they are taken for a mask."""
        done_again = self.of(leaf)
        return done_again is None or not done_again[0].edge_to(done_again[1]).bits & NEGINF

    def from_loader(self, leaf: torch.Tensor) -> FromLoader | None:
        """Return what a DataLoader gave, if this tensor is that and was not changed since; else None."""
        return self._loaded([*self._tape.originals(leaf), *self._prelude.originals(leaf)])

    def indices(self, inputs: Sequence[torch.Tensor], n_rows: int) -> tuple[int, ...]:
        """Return the dataset's index of each row of the batch; empty if not known, or if several loaders do not agree.

        Args:
            inputs: of the micro-batch, from outside.
            n_rows: of the batch.
        """
        found: set[tuple[int, ...]] = set()
        for leaf in inputs:
            originals = self._tape.originals(leaf)
            slots = [slot for t in originals if (slot := self._prelude.slot(t)) is not None]
            given = [e.tensor for _, event in self._prelude.making(*slots) for e in event.externals]
            for candidates in (originals, *(self._prelude.originals(each) for each in given)):
                known = self._loaded(candidates)
                if known is not None and len(known.indices) == n_rows:
                    found.add(known.indices)
        return found.pop() if len(found) == 1 else ()

    def _leaf(self, tensor: torch.Tensor) -> tuple[str, str]:
        for kind, name in (("param", self._names.param_name(tensor)), ("buffer", self._names.buffer_name(tensor))):
            if name is not None:
                return kind, name
        given = self.from_loader(tensor)
        return ("batch", given.name) if given is not None else ("external", "")


def _is_like(made: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Return whether the same elements are finite: else something took part that was not done again."""
    return made.shape == leaf.shape and torch.equal(torch.isfinite(made), torch.isfinite(leaf))
