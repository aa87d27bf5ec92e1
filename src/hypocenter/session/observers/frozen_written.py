"""What is frozen beside what is trained stays where it is between updates too. For HC262.

Adapters are trained beside a weight that no optimizer holds. Who adds them to it, to look at the merged model, and does
not take them out again, counts them twice from then on. Who adds them and begins them anew keeps what the model
computes, so nothing is said where a trained neighbour has shrunk; nor where the weight went towards a trained one of
its shape, as targets and averages do, or moves at the first looks. A weight with no factors beside it, whose product
has its shape, is none that adapters are added to: a mask, a temperature, a table of random features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
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
PARAMETERS, NEIGHBOURS, SOURCES, ELEMENTS = 3, 4, 64, 64
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
        self._frozen: list[_Frozen] = []
        self._is_found = self._is_told = False
        self._n_updates = 0

    def at_rest(self) -> Iterable[str]:
        """Without frozen parameters there is nothing to look at."""
        return ("before_update",) if self._is_found and not (self._frozen or self._deferred.waiting) else ()

    def on_root(self, model: object) -> None:
        """They are looked for anew."""
        self._is_found = False

    def before_update(self, update: Update) -> None:
        """Have they changed since the last look?"""
        if self._deferred.waiting:
            self._deferred.read()
        self._n_updates += 1
        if not self._is_found:  # a part of the model that is called by itself is one more: what is known stays
            known = {id(each.parameter()): each for each in self._frozen}
            self._is_found, self._frozen = True, [known.get(id(each.parameter()), each) for each in self._find(update)]
        if not self._frozen:
            return
        for each in self._frozen:
            self._look(each, update.step)
        self._frozen = [each for each in self._frozen if not each.is_over]

    def _find(self, update: Update) -> list[_Frozen]:
        """Some of those that are nearest to what is trained."""
        trained = update.ids
        held = {id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        beside = {id(p): (p, near) for root in self.context.names.roots() for p, near in _beside(root, trained)}
        free = [each for key, each in beside.items() if key not in held | trained]
        nearest = min((near.n_together for _, near in free), default=0)
        found = [each for each in free if each[1].n_together == nearest]
        largest = max((p.dim() for p, _ in found), default=0)
        found = [each for each in found if each[0].dim() == largest]
        return [
            _Frozen(self.context.label(p), Ref(p), [Ref(each) for each in near.trained], _alike(p, update.parameters))
            for p, near in found[:: -(-len(found) // PARAMETERS) or 1]
        ]

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
            move, was = now.float() - before.float(), before.float()
            limit = slack_of(name_of(now.dtype)) * was.abs().max()
            facts = [(move.abs() > limit).any().float(), (norms < SHRUNK * before_norms).any().float()]

        def read(host: Sequence[float]) -> None:
            has_changed, has_shrunk = host
            if not has_changed:
                each.n_stayed += 1
                return
            each.is_over = True
            if not self._is_told and each.n_stayed >= STAYS and not has_shrunk and not _follows(each, was, move):
                self._is_told = True
                order = self.context.clock.next_order()
                row = number_row(each.name, FROZEN_WRITTEN, step, order, float(each.n_stayed))
                writer = None if (written := each.parameter()) is None else self.context.writer_of(written)
                source = source_of(writer[0].co_filename, writer[1], writer[0].co_name) if writer is not None else None
                self.rows.append(replace(row, source=source))

        self._deferred.add(torch.stack(facts), read)


@torch.no_grad()
def _follows(each: _Frozen, was: Tensor, move: Tensor) -> bool:
    """Whether it went straight towards a trained one. Waits for the device, once in a run."""
    others = [sample(p.detach(), ELEMENTS) for ref in each.alike if (p := ref()) is not None]
    ways = [other.float() - was for other in others if other is not None and other.shape == move.shape]
    cosines = [(move @ way) / (move.norm() * way.norm()).clamp_min(1e-30) for way in ways]
    return bool(cosines) and float(torch.stack(cosines).max()) >= STRAIGHT


@dataclass(frozen=True, slots=True)
class _Near:
    """What is below the module that the module of a parameter is in."""

    n_together: int  # parameters
    trained: Sequence[Tensor]


def _alike(parameter: Tensor, trained: Sequence[Tensor]) -> list[Ref[Tensor]]:
    found = [each for each in trained if each.shape == parameter.shape and each.device == parameter.device]
    return [Ref(each) for each in found[:SOURCES]]


def _are_factors_of(parameter: Tensor, near: Sequence[Tensor]) -> bool:
    """Return whether two of these, of a lower rank, give a product of the parameter's shape, or of its transpose."""
    if parameter.dim() < 2 or not parameter.numel():
        return False
    shapes = {(len(p), p.numel() // len(p)) for p in near if p.dim() > 1 and p.numel()}
    n_out, n_in = len(parameter), parameter[0].numel()
    ranks = {rank for rank, n in shapes if n in (n_out, n_in) and rank < min(n_out, n_in)}
    return any((out, rank) in shapes for rank in ranks for out in (n_out, n_in))


def _beside(root: nn.Module, trained: Set[int]) -> Iterator[tuple[Tensor, _Near]]:
    """Frozen parameters of a model that some are trained beside."""
    modules = dict(root.named_modules())
    for name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad or not parameter.is_floating_point():
                continue
            together = list((modules.get(name.rpartition(".")[0], module) if name else module).parameters())
            near = [p for p in together if id(p) in trained and p.device == parameter.device]
            if _are_factors_of(parameter, near):
                yield parameter, _Near(len(together), near[:NEIGHBOURS])
