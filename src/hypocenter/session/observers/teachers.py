"""Digests of networks that a loss is made of and that nobody trains: teachers, target networks. For HC301.

On the steps of config.replicas and on audited ones, of some of their parameters. That the loss is made of what they
compute is known from the tapes of the step: what is only evaluated is left alone. Nothing is sent to other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from hypocenter.detect.replica_rows import READ
from hypocenter.nouns import Reading, Summary
from hypocenter.schedule import parse
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.tape import Event, Tape
from hypocenter.tap.weakly import Ref

SOME = 8  # parameters of a network, evenly spread: it moves as a whole


class Teachers(Observer):
    """Writes the digests. Off in a process that is alone."""

    needs = "ranks"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_scheduled, self._is_audited = parse(context.config.replicas), context.audits.is_planned
        self._read: dict[int, Ref[nn.Module]] = {}  # that losses of this step are made of

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Find out what the loss is made of."""
        step, prelude = self.context.clock.step, self.context.prelude
        if prelude is None or self.context.config.replicas == "never":
            return
        if not (self._is_scheduled(step) or self._is_audited(step)):
            return
        with torch._C.DisableTorchFunction():
            for event in self._made_of(roots, prelude):
                module = event.module
                if module is not None and not any(p.requires_grad and p.grad is not None for p in module.parameters()):
                    self._read[id(module)] = Ref(module)

    def _made_of(self, roots: Sequence[Tensor], prelude: Tape) -> Iterator[Event]:
        """What the loss was computed by, with a graph or beside it."""
        tape = self.context.tape
        for _, event in tape.making(*(slot for root in roots if (slot := tape.slot(root)) is not None)):
            yield event
            for external in event.externals if event.module is None else ():
                slots = [n for t in tape.originals(external.tensor) if (n := prelude.slot(t)) is not None]
                yield from (made for _, made in prelude.making(*slots))

    def before_update(self, update: Update) -> None:
        """Digest what was read."""
        read, self._read = self._read, {}
        if not read:
            return
        held = {id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        chosen: list[Tensor] = []
        for module in (found for ref in read.values() if (found := ref()) is not None):
            own = list(module.parameters())
            if own and not any(id(p) in held or p.grad is not None for p in own):
                chosen += own[:: -(-len(own) // SOME)]
        for parameter, digest in zip(chosen, to_host(digests(chosen)), strict=True):
            if digest is not None:
                self.rows.append(self._row(parameter, digest, update.step))

    def _row(self, parameter: Tensor, digest: int, step: int) -> Reading:
        return Reading(
            step=step, microbatch=0, phase="param", site=self.context.label(parameter), port=READ,
            order=self.context.clock.next_order(), dtype=str(parameter.dtype).removeprefix("torch."),
            shape=tuple(parameter.shape), summary=Summary(n=parameter.numel()), digest=digest,
        )  # fmt: skip
