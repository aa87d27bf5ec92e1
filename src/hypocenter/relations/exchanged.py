"""Two ranks with the same weights exchange their micro-batches: each loss must be what the other rank came to.

So the loss of a micro-batch does not depend on which rank computes it. It does where the labels of samples that are
gathered from all ranks are numbered as if this rank's own came first.

What is the same in two steps (the number of a rank, a mask) is no part of a micro-batch and stays where it is. Nothing
is asked where weights or buffers differ (experts, shards, stages, statistics of each rank), nor where the outputs
of one rank move as another one puts its samples into another order: they hold parts of the same samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hypocenter.relations.contracts import Wrong
from hypocenter.relations.losses import Found
from hypocenter.relations.subject import OUTER, Given, Place, Subject, Way
from hypocenter.relations.together import Channel, digests_of
from hypocenter.tap.gradients import to_host

CODE = "HC252"
TOLERANCE = 1e-3  # relative: sums over ranks come in another order
_ALIKE = Way(seed=0xE8C4)  # what is drawn is the same on both ranks
_FIRST, _SECOND = 0, 1  # the ranks that exchange


MOST_GIVEN = 64  # tensors of one micro-batch: each is described to the other rank


class _CannotBe(Exception):
    """A rank did not come through a forward with another micro-batch; raised on all ranks."""


@dataclass(slots=True)
class Before:
    """What a rank was given at the look before this one.

    Attributes:
        was_asked: micro-batches were exchanged at an earlier look.
        is_over: it was tried, and cannot be.
    """

    digests: list[str] = field(default_factory=list[str])
    was_asked: bool = False
    is_over: bool = False


def exchanged(channel: Channel, subject: Subject, rank: int, before: Before, *, is_asked: bool) -> Found | None:
    """Exchange the micro-batches of the first two ranks, and return what is wrong with the loss; on the first rank.

    To be called on all ranks; the others do the same forwards with their own.

    Args:
        before: of this rank; it is brought up to date.
        is_asked: if not, it is only noted what is given. The same on all ranks.

    Raises:
        ReplayImpossible: another rank did not answer.
    """
    digests = digests_of(subject.given)
    constant = [a == b for a, b in zip(digests, before.digests, strict=False)]
    is_known, before.digests = len(constant) == len(digests), digests
    if not is_asked or before.is_over:
        return None
    try:
        return _exchanged(channel, subject, rank, before, constant if is_known else None)
    except _CannotBe:
        before.is_over = True
        return None


def _exchanged(
    channel: Channel, subject: Subject, rank: int, before: Before, constant: list[bool] | None
) -> Found | None:
    """Return the same. `constant`: of each input whether it is what it was at the look before; None: not known."""
    own: dict[str, Any] = {"may_be": constant is not None and not subject.has_own_generators}
    if own["may_be"] and len(before.digests) <= MOST_GIVEN:
        own |= {"constant": constant, "digests": before.digests, "weights": _weights_of(subject)}
        own["inputs"] = [[each.name, str(each.tensor.dtype), [*each.tensor.shape]] for each in subject.given]
    one, other = (_said(channel, own, rank, root) for root in (_FIRST, _SECOND))
    if "inputs" not in one or any(one[key] != other.get(key) for key in ("inputs", "weights")):
        return None
    apart = [a != b for a, b in zip(one["digests"], other["digests"], strict=True)]
    fixed = [a or b for a, b in zip(one["constant"], other["constant"], strict=True)]
    of_batch = [n for n, is_other in enumerate(apart) if is_other and not fixed[n]]
    if not any(subject.given[n].is_of_model for n in of_batch):
        return None
    subject.limit_s = math.inf  # four forwards, and no rank leaves one out
    usual = _ran(channel, subject, {})
    places, new = [subject.given[n] for n in of_batch], list[Tensor]()
    for root in (_FIRST, _SECOND):
        if rank == root:
            channel.tell({}, [each.tensor for each in places], root)
        else:
            heard = channel.hear(root)[1]
            new = heard if rank == 1 - root else new
    changed = {each.place: value.to(each.tensor.device) for each, value in zip(places, new, strict=False)}
    now = _ran(channel, subject, changed)
    turned = _ran(channel, subject, _turned(places) if rank == _FIRST else {})
    again = _ran(channel, subject, {})
    may_be = not subject.held.has_batch_norm and _near(usual.loss, again.loss)
    may_be = may_be and (rank == _FIRST or _are_near(usual.outputs, turned.outputs))
    mine = {"losses": [usual.loss, now.loss], "may_be": may_be}
    theirs = _said(channel, mine, rank, _SECOND)
    if rank != _FIRST or not mine["may_be"] or not theirs["may_be"]:
        return None
    found, before.was_asked = _judged((usual.loss, now.loss), theirs["losses"], before.was_asked), True
    return found


def _said(channel: Channel, own: dict[str, Any], rank: int, root: int) -> dict[str, Any]:
    """Return what one rank says of itself, to all."""
    if rank != root:
        return channel.hear(root)[0]
    channel.tell(own, root=root)
    return own


@dataclass(frozen=True, slots=True)
class _Ran:
    """What came of a forward that all ranks do: the loss, and what outermost modules with parameters gave."""

    loss: float
    outputs: Sequence[Tensor]


def _ran(channel: Channel, subject: Subject, changed: dict[Place, Tensor]) -> _Ran:
    loss, outputs, why = math.nan, list[Tensor](), None
    try:
        ran = subject.run(changed, way=_ALIKE)
        loss = sum(float(each.double().sum()) for each in ran.losses)
        for (key, _), output in ran.outputs.items():
            module = subject.module_at(int(key.removeprefix(OUTER))) if key.startswith(OUTER) else None
            if module is not None and next(module.parameters(), None) is not None:
                outputs.append(output)
    except Exception as error:  # of the user's own code: all ranks are told
        why = error
    if not channel.agree(came_through=why is None):
        raise _CannotBe from why
    return _Ran(loss, outputs)


def _are_near(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(
        a.shape == b.shape and bool((a.double() - b.double()).norm() <= TOLERANCE * a.double().norm())
        for a, b in zip(some, others, strict=True)
    )


def _weights_of(subject: Subject) -> str:
    """Return a digest of what must be the same on both ranks: all parameters, and buffers, that are whole here."""
    with torch.no_grad():
        parts = [part for module in subject.modules for part in module.modules()]
        tables = [table for part in parts for table in (part._parameters, part._buffers)]
        held = {id(t): t for table in tables for t in table.values() if t is not None}
        sums = [
            t.detach().double().sum()
            for t in held.values()
            if not hasattr(t, "to_local") and t.layout == torch.strided and not t.is_complex() and t.numel()
        ]  # fmt: skip
    return hashlib.sha1(repr(to_host(sums)).encode(), usedforsecurity=False).hexdigest()


def _turned(places: Sequence[Given]) -> dict[Place, Tensor]:
    """Return a micro-batch with its samples in another order."""
    n = next((each.tensor.shape[:1] for each in places if each.is_of_model), None)
    return {each.place: each.tensor.roll(1, 0) for each in places if each.tensor.dim() and each.tensor.shape[:1] == n}


def _judged(first: tuple[float, float], second: tuple[float, float], was_asked: bool) -> Found | None:
    """Compare the usual loss, and that of the other micro-batch, of both ranks."""
    is_exchanged = _near(first[1], second[0]) and _near(second[1], first[0])
    is_of_all = _near(first[1], first[0]) and _near(second[1], second[0])  # a sum over all ranks, or a part of one
    if is_exchanged or is_of_all:
        return None
    wrong = Wrong(
        title="the loss of a micro-batch depends on the rank that computes it",
        why=f"ranks 0 and 1 have the same weights and have exchanged their micro-batches in a replay: of one rank 0 "
        f"makes {first[0]:.5g} and rank 1 {second[1]:.5g}, of the other {first[1]:.5g} and {second[0]:.5g}",
        remedy="look at what the loss takes for this rank's own place among the samples of all ranks: of gathered "
        "samples those of a rank begin at rank * batch size",
    )
    return Found(code=CODE, wrong=wrong, was_asked=was_asked)


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12)
