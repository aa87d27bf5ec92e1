"""Optimizers that hold copies of weights, whole or in parts, in place of them: as ZeRO and masters by hand do.

Two equalities hold in every such program. What an update left in a copy is what the weight is when the next one
begins; and the gradient that the copy was given is that of the weight, which it need not equal (it may be a mean over
ranks), but is never without relation to. For HC231 and HC232.

Which part of which weight a copy stands for is read off its bits at its first update: some runs of WINDOW numbers that
come once in all weights. Weights without a gradient of their own in `.grad`, and those that an optimizer holds, are
left alone. What never holds may be meant (weights that are quantised, gradients that are made otherwise): an equality
counts when it held at KEPT looks before, or when what is missing in its place is seen in another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hypocenter import schedule
from hypocenter.detect.law_rows import ANOTHER, CHANGED, COPY, UNBALANCED
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred
from hypocenter.tap.gradients import PLAIN_TYPES
from hypocenter.tap.weakly import Ref

WINDOW, KEY = 32, 3  # numbers in a row that tell a place, and of these that it is looked for by
WINDOWS, TENSORS = 16, 64  # of an optimizer, and copies among which they are spread
WEIGHTS_AT_MOST = 1 << 24  # elements in which they are looked for
TIMES, KEPT = 3, 2  # looks in a row: at which an equality does not hold, and at which it held before
FEWEST = 128  # elements of gradients that are compared
UNRELATED = 0.2  # times the cosine between a rank's own gradient and a mean in which nothing but noise is
ROUNDINGS = 2  # units in the last place of the weight's format, of the largest number


@dataclass(frozen=True, slots=True)
class _Pair:
    """A run of a copy, and the same run of a weight."""

    copy: Ref[Tensor]
    start: int
    weight: Ref[Tensor]
    offset: int
    at: int  # the same, counted through all weights
    first: Tensor  # the weight's numbers at the first look
    name: str


@dataclass(slots=True)
class _Copies:
    """What is known of the copies that one optimizer holds."""

    pairs: list[_Pair]
    weights: list[Ref[Tensor]]  # all that they may stand for, in order
    n_kept: int = 0  # looks at which weights were their copies
    n_related: int = 0  # and at which gradients had to do with each other
    apart: list[int] = field(default_factory=list)  # looks in a row at which a weight was not its copy: their steps
    unrelated: list[int] = field(default_factory=list)  # the same of gradients
    last: list[float] = field(default_factory=list)  # squares of norms of the weights' gradients


class WorkingCopies(Observer):
    """Writes a row for the first weight that is not its copy, or whose copy is given the gradient of something else."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._deferred = Deferred(context.ride)
        self._known: dict[
            int, _Copies | None
        ] = {}  # by id of the optimizer's first parameter; None: nothing to look at

    def at_rest(self) -> Iterable[str]:
        """Without copies there is nothing to compare."""
        return ("before_update",) if not (any(self._known.values()) or self._deferred.waiting) else ()

    def before_update(self, update: Update) -> None:
        """Compare copies with their weights, and the gradients of both, before the update."""
        if self._deferred.waiting:
            self._deferred.read()
        if not update.parameters or not update.check.is_finite:
            return
        key = id(update.parameters[0])
        if key not in self._known:
            self._known[key] = self._matched(update)
            return
        copies = self._known[key]
        if copies is None or not (update.parameters[0].device.type == "cpu" or self._is_due(update.step)):
            return
        numbers = [self._numbers(pair) for pair in copies.pairs]
        if any(each is None for each in numbers):  # weights without gradients, or those that are gone
            self._known[key] = None
            return
        vector = torch.cat([each for each in numbers if each is not None])
        n_ranks = self.context.rank()[1]
        self._deferred.add(vector, lambda host: self._judge(key, copies, host, update.step, n_ranks))

    def _matched(self, update: Update) -> _Copies | None:
        """Find the weights of which this optimizer's parameters, which are in no model, are copies; None without."""
        named = [(name, p) for name, p in self.context.names.parameters() if p.requires_grad]
        mine = {id(p) for _, p in named}
        outside = [p for p in update.parameters if id(p) not in mine and _is_plain(p) and p.numel() >= WINDOW]
        held = {id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        weights = [(name, p) for name, p in named if id(p) not in held and p.grad is not None and _is_plain(p)]
        weights = [(n, p) for n, p in weights if p.dtype == weights[0][1].dtype and p.device == weights[0][1].device]
        if not outside or not weights or sum(p.numel() for _, p in weights) > WEIGHTS_AT_MOST:
            return None
        places = {p.untyped_storage().data_ptr() for _, p in weights}
        chosen = outside[:: -(-len(outside) // TENSORS)]
        chosen = [
            p for p in chosen if p.untyped_storage().data_ptr() not in places and p.device == weights[0][1].device
        ]
        with torch.no_grad():
            flat = _flat([p for _, p in weights])
            runs = [
                (copy, start, copy.detach().view(-1)[start : start + WINDOW].to(weights[0][1].dtype))
                for copy in chosen
                for start in _starts(copy.numel(), max(1, WINDOWS // len(chosen)))
            ]
            if flat is None or flat.numel() < WINDOW or not runs:
                return None
            found = torch.stack([_place(flat, run) for _, _, run in runs]).tolist()
            ends = list(accumulate(p.numel() for _, p in weights))
            pairs = []
            for (copy, start, _), (at, is_it) in zip(runs, found, strict=True):
                number = next((i for i, end in enumerate(ends) if at < end), None)
                if is_it and number is not None and at + WINDOW <= ends[number]:
                    name, weight = weights[number]
                    offset = int(at) - (ends[number] - weight.numel())
                    first = weight.detach().view(-1)[offset : offset + WINDOW].clone()
                    pairs.append(_Pair(Ref(copy), start, Ref(weight), offset, int(at), first, name))
        return _Copies(pairs=pairs, weights=[Ref(p) for _, p in weights]) if pairs else None

    def _numbers(self, pair: _Pair) -> Tensor | None:
        """Return (is weight apart from copy, has it moved, 3 products of their gradients): [5], float32, or None."""
        copy, weight = pair.copy(), pair.weight()
        if copy is None or weight is None or weight.grad is None or copy.grad is None:
            return None
        if not (_is_plain(copy.grad) and _is_plain(weight.grad)):
            return None
        here, there = slice(pair.start, pair.start + WINDOW), slice(pair.offset, pair.offset + WINDOW)
        with torch.no_grad():
            mine, theirs = copy.detach().view(-1)[here], weight.detach().view(-1)[there]
            rounding = ROUNDINGS * torch.finfo(weight.dtype).eps
            gap = (mine.float() - theirs.float()).abs().max()
            is_apart = gap > rounding * mine.float().abs().max()
            used, given = copy.grad.reshape(-1)[here].float(), weight.grad.reshape(-1)[there].float()
            return torch.stack([
                is_apart.float(), (theirs != pair.first).any().float(), used @ given, used @ used, given @ given,
            ])  # fmt: skip

    def _judge(self, key: int, copies: _Copies, host: Sequence[float], step: int, n_ranks: int) -> None:
        rows = [host[i : i + 5] for i in range(0, len(host), 5)]
        squares = [row[4] for row in rows]
        is_fresh, copies.last = squares != copies.last, squares
        if not is_fresh:  # gradients that are left over: nobody trains these weights
            self._known[key] = None
            return
        apart = [pair for pair, row in zip(copies.pairs, rows, strict=True) if row[0]]
        has_moved = any(row[1] for row in rows)
        _note(copies.apart, step, is_so=bool(apart) and has_moved)
        copies.n_kept += has_moved and not apart
        used, given = sum(row[3] for row in rows), sum(squares)
        cosine = sum(row[2] for row in rows) / math.sqrt(used * given) if used * given > 0.0 else 1.0
        can_tell = WINDOW * len(rows) >= max(FEWEST, 64 * n_ranks)
        is_unrelated = can_tell and abs(cosine) < UNRELATED / math.sqrt(n_ranks)
        _note(copies.unrelated, step, is_so=is_unrelated)
        copies.n_related += can_tell and not is_unrelated
        if len(copies.apart) == TIMES:
            if copies.n_kept >= KEPT or _are_elsewhere(copies):
                self._tell(apart[0].name, CHANGED, COPY, step, copies.apart[0], len(apart) / len(rows))
        elif len(copies.unrelated) == TIMES:
            if copies.n_related >= KEPT or _is_of_another(copies, UNRELATED / math.sqrt(n_ranks)):
                self._tell(copies.pairs[0].name, UNBALANCED, ANOTHER, step, copies.unrelated[0], cosine)
        else:
            return
        self._known[key] = None  # it is known, or a habit

    def _tell(self, name: str, port: str, kind: str, step: int, first: int, number: float) -> None:
        order = self.context.clock.next_order()
        self.rows.append(replace(number_row(name, port, step, order, number, module=kind), call=step - first))


def _note(steps: list[int], step: int, *, is_so: bool) -> None:
    if is_so:
        steps.append(step)
    else:
        steps.clear()


def _are_elsewhere(copies: _Copies) -> bool:
    """Return whether what a copy became stands in the weights, at another place."""
    flat = _flat([ref() for ref in copies.weights])
    pairs = [(copy, pair) for pair in copies.pairs if (copy := pair.copy()) is not None]
    if flat is None or not pairs:
        return False
    runs = [copy.detach().view(-1)[pair.start : pair.start + WINDOW].to(flat.dtype) for copy, pair in pairs]
    found = torch.stack([_place(flat, run) for run in runs]).tolist()
    return any(is_it and int(at) != pair.at for (at, is_it), (_, pair) in zip(found, pairs, strict=True))


def _is_of_another(copies: _Copies, cosine: float) -> bool:
    """Return whether the gradient of a copy is that of the part before or after its own."""
    flat = _flat([None if (weight := ref()) is None else weight.grad for ref in copies.weights])
    pairs = [(copy, pair) for pair in copies.pairs if (copy := pair.copy()) is not None and copy.grad is not None]
    if flat is None or not pairs:
        return False
    for sign in (-1, 1):
        places = [pair.at + sign * copy.numel() for copy, pair in pairs]
        inside = [0 <= at <= flat.numel() - WINDOW for at in places]
        theirs = [flat[at : at + WINDOW].float() for at, is_in in zip(places, inside, strict=True) if is_in]
        mine = [
            copy.grad.reshape(-1)[pair.start : pair.start + WINDOW].float()
            for (copy, pair), is_in in zip(pairs, inside, strict=True)
            if is_in and copy.grad is not None
        ]
        if WINDOW * len(mine) < FEWEST:
            continue
        a, b = torch.cat(mine), torch.cat(theirs)
        if float(a @ b) > 2.0 * cosine * float(a.norm() * b.norm()):
            return True
    return False


def _flat(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return all tensors flattened into one; None where one is gone."""
    values = [each.detach().reshape(-1) for each in tensors if each is not None]
    return torch.cat(values) if len(values) == len(tensors) else None


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
    )


def _starts(n: int, n_windows: int) -> list[int]:
    """Return the starts of runs at an equal distance."""
    last = n - WINDOW
    return sorted({round(i * last / max(1, n_windows - 1)) for i in range(n_windows)})


def _place(flat: Tensor, run: Tensor) -> Tensor:
    """Return where these numbers lie, and whether they do so once and are no constant: [2], float64."""
    n = flat.numel() - WINDOW + 1
    is_begin = torch.ones(n, dtype=torch.bool, device=flat.device)
    for i in range(KEY):
        is_begin &= flat[i : n + i] == run[i]
    at = is_begin.to(torch.uint8).argmax()
    is_it = (flat[at + torch.arange(WINDOW, device=flat.device)] == run).all()
    is_it &= (is_begin.sum() == 1) & (run.max() > run.min())
    return torch.stack([at.double(), is_it.double()])
