"""Whether the loss compares each output with its own label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.relations.called import LossCall
from hypocenter.relations.contracts import Wrong
from hypocenter.relations.facts import Facts, stand_later
from hypocenter.relations.subject import Place, Subject

_LEAST_ROWS = 3
_FARTHEST = 3  # places


def crosswise(subject: Subject, facts: Facts, calls: Sequence[LossCall]) -> tuple[LossCall, Wrong] | None:
    """A difference of all outputs with all labels: the loss stays when labels change places. One forward more."""
    call = next((each for each in calls if _is_of_loss(each)), None)
    turned: dict[Place, Tensor] = {}
    for each in facts.labels:
        if each.tensor.dim() and len(each.tensor) >= _LEAST_ROWS:
            turned[each.place] = each.tensor.roll(1, dims=0)
    is_other = any(not torch.equal(turned[e.place], e.tensor) for e in facts.labels if e.place in turned)
    if call is None or not is_other or not facts.ran.losses:
        return None
    limit = facts.tolerance / 10
    now = subject.run(turned).losses
    if len(now) != len(facts.ran.losses):
        return None
    if any(bool(((a - b).abs() > limit * b.abs()).any()) for a, b in zip(now, facts.ran.losses, strict=True)):
        return None
    shapes = f"{[*call.input.shape]} and {[*call.target.shape]}"
    return call, Wrong(
        title="the loss does not depend on which label belongs to which sample",
        why=f"{call.name} of {shapes} compares every output with every label, and the loss stays the same when labels "
        "change places", remedy="give both the same shape (squeeze or unsqueeze one of them)",
    )  # fmt: skip


def _is_of_loss(call: LossCall) -> bool:
    """What is made of an output and of something that is none."""
    return call.input.requires_grad != call.target.requires_grad


def asked_too_late(subject: Subject, facts: Facts) -> Wrong | None:
    """Tokens that the loss asks for stand two places later in the input, or more."""
    if facts.targets is None:
        return None
    for each in subject.of_model:
        ids = each.tensor
        if ids.dim() != 2 or ids.is_floating_point() or ids.numel() != facts.targets.numel():
            continue
        asked = facts.targets.reshape(ids.shape)
        if any(stand_later(ids, asked, places) for places in (0, 1)):
            continue
        for places in range(2, min(_FARTHEST + 1, ids.shape[1])):
            if stand_later(ids, asked, places):
                return Wrong(
                    title=f"the loss asks for the token {places} places later",
                    why=f"at each place what is asked for stands {places} places later in {each.name}: labels are "
                    "shifted twice, by the program and by the model",
                    remedy="give the model labels that are not shifted",
                )
    return None
