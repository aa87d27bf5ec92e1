"""Tokens of an input, and what the loss asks for at their places."""

from __future__ import annotations

import torch
from torch import Tensor

from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import Trial
from hypocenter.relations.subject import Given


def targets_of(given: Given, facts: Facts) -> Tensor | None:
    """What is asked for, laid out as this input is."""
    tensor, targets = given.tensor, facts.targets
    is_text = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32)
    if targets is None or not is_text or tensor.shape[0] != facts.n_rows or targets.numel() != tensor.numel():
        return None
    return targets.reshape(tensor.shape)


def later_replaced(given: Given, targets: Tensor, facts: Facts) -> Trial | None:
    """From another place on in each sample; None: nothing can be replaced."""
    ids, n, length = given.tensor, facts.n_rows, given.tensor.shape[1]
    asked = (targets >= 0).cpu()
    stays, new = torch.zeros(n, length, dtype=torch.bool), ids.clone()
    for row in range(n):
        places = asked[row].nonzero()[:, 0].tolist()
        places = [place for place in places if place + 1 < length]
        if not places:
            continue
        cut = places[(row + 1) * (len(places) - 1) // (n + 1)] if n > 1 else places[len(places) // 2]
        later = _other(ids, row, cut + 1)
        if later is None:
            continue
        new[row, cut + 1 :] = later
        stays[row, : cut + 1] = asked[row, : cut + 1]
    if not bool(stays.any()):
        return None
    return Trial(
        changed={given.place: new},
        parts=Places(stays),
        what="later tokens replaced",
        whom="the outputs before them",
        keys=frozenset({facts.logits}),
    )


def _other(ids: Tensor, row: int, start: int) -> Tensor | None:
    """Other tokens from a place on: its own, turned by one; where these are all alike, those of another row."""
    own = ids[row, start:]
    turned = own.roll(1)
    if not torch.equal(own, turned):
        return turned
    for other in range(len(ids)):
        if not torch.equal(ids[other, start:], own):
            return ids[other, start:]
    return None
