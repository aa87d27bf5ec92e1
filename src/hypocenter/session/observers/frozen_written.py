"""What is frozen beside what is trained stays where it is between updates too. For HC262.

Adapters are trained beside a weight that no optimizer holds. Who adds them to it, to look at the merged model, and does
not take them out again, counts them twice from then on. Who adds them and begins them anew keeps what the model
computes, so nothing is said where a trained neighbour has shrunk; nor where the weight went towards a trained one of
its shape, as targets and averages do, or moves at the first looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hypocenter.detect.law_rows import FROZEN_WRITTEN
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import name_of
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred, sample
from hypocenter.session.observers.slack import slack_of
from hypocenter.tap.source import source_of
from hypocenter.tap.weakly import Ref

EVERY = 4  # updates, where looking is work for a device; on the host each
PARAMETERS, NEIGHBOURS, ELEMENTS = 8, 4, 64
STAYS = 4  # looks in a row
SHRUNK = 0.5  # of its norm: begun anew
STRAIGHT = 0.99  # cosine of the angle between its move and the way to another one


@dataclass(slots=True)
class _Frozen:
    name: str
    parameter: Ref[Tensor]
    neighbours: list[Ref[Tensor]]  # that are trained
    alike: list[Ref[Tensor]]  # that are trained, of its shape
    before: Tensor | None = None
    norms: Tensor | None = None  # of the neighbours
    n_stayed: int = 0
    is_over: bool = False


class FrozenWritten(Observer):
    """Writes a row for the first frozen weight that changes once, after it has stayed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deferred = Deferred(context.ride)
        self._frozen: list[_Frozen] | None = None
        self._n_updates = 0

    def on_root(self, model: object) -> None:
        """They are looked for anew."""
        self._frozen = None

    def before_update(self, update: Update) -> None:
        """Have they changed since the last look?"""
        if self._deferred.waiting:
            self._deferred.read()
        self._n_updates += 1
        if self._frozen is None:
            self._frozen = list(self._find(update))
        for each in self._frozen:
            self._look(each, update.step)
        self._frozen = [each for each in self._frozen if not each.is_over]

    def _find(self, update: Update) -> list[_Frozen]:
        trained = set(map(id, update.parameters))
        held = {id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        found = [each for root in self.context.names.roots() for each in _beside(root, trained)]
        found = [(p, near) for p, near in found if id(p) not in held | trained]
        return [
            _Frozen(
                self.context.label(p), Ref(p), [Ref(each) for each in near[:NEIGHBOURS]],
                [Ref(each) for each in update.parameters if each.shape == p.shape and each.device == p.device][:NEIGHBOURS],
            )
            for p, near in found[:: -(-len(found) // PARAMETERS) or 1]
        ]  # fmt: skip

    def _look(self, each: _Frozen, step: int) -> None:
        parameter = each.parameter()
        near = [p for ref in each.neighbours if (p := ref()) is not None]
        if parameter is None or parameter.requires_grad or not near:
            each.is_over = True
            return
        if parameter.device.type != "cpu" and self._n_updates % EVERY:
            return
        now = sample(parameter.detach(), ELEMENTS)
        parts = [part for p in near if (part := sample(p.detach(), ELEMENTS)) is not None]
        if now is None or len(parts) < len(near):
            each.is_over = True
            return
        with torch.no_grad():
            norms = torch.stack([part.float().norm() for part in parts])
            before, before_norms, each.before, each.norms = each.before, each.norms, now.clone(), norms
            if before is None or before_norms is None or before.shape != now.shape:
                return
            move = now.float() - before.float()
            limit = slack_of(name_of(now.dtype)) * before.float().abs().max()
            others = [
                s for ref in each.alike if (p := ref()) is not None and (s := sample(p.detach(), ELEMENTS)) is not None
            ]
            ways = [other.float() - before.float() for other in others if other.shape == move.shape]
            cosines = [(move @ way) / (move.norm() * way.norm()).clamp_min(1e-30) for way in ways]
            facts = [
                (move.abs() > limit).any().float(),
                (norms < SHRUNK * before_norms).any().float(),
                torch.stack(cosines).max() if cosines else move.new_zeros(()),
            ]

        def read(host: Sequence[float]) -> None:
            has_changed, has_shrunk, cosine = host
            if not has_changed:
                each.n_stayed += 1
                return
            each.is_over = True
            if each.n_stayed >= STAYS and not has_shrunk and cosine < STRAIGHT:
                order = self.context.clock.next_order()
                row = number_row(each.name, FROZEN_WRITTEN, step, order, float(each.n_stayed))
                writer = None if (written := each.parameter()) is None else self.context.writer_of(written)
                source = source_of(writer[0].co_filename, writer[1], writer[0].co_name) if writer is not None else None
                self.rows.append(replace(row, source=source))

        self._deferred.add(torch.stack(facts), read)


def _beside(root: nn.Module, trained: set[int]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Frozen parameters of a model, each with those that are trained below the module that its own is in."""
    modules = dict(root.named_modules())
    for name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad or not parameter.is_floating_point():
                continue
            parent = modules.get(name.rpartition(".")[0], module) if name else module
            near: list[Tensor] = [p for p in parent.parameters() if id(p) in trained and p.device == parameter.device]
            if near:
                yield parameter, near
