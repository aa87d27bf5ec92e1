"""Tokens of an input, and what the loss asks for at their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import Trial
from hypocenter.relations.subject import Given

_ORDERS = 400


def targets_of(given: Given, facts: Facts) -> Tensor | None:
    """Return the targets in the layout of this input; None if they do not fit it."""
    tensor, targets = given.tensor, facts.targets
    is_text = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32)
    if targets is None or not is_text or tensor.shape[0] != facts.n_rows or targets.numel() != tensor.numel():
        return None
    return targets.reshape(tensor.shape)


def later_replaced(given: Given, targets: Tensor, facts: Facts) -> Trial | None:
    """Return a trial that replaces tokens from some place on in each sample; None if nothing can be replaced."""
    ids, n, length = given.tensor, facts.n_rows, given.tensor.shape[1]
    asked = (targets >= 0).cpu()
    stays, new = torch.zeros(n, length, dtype=torch.bool, device="cpu"), ids.clone()
    pool = targets[targets >= 0]
    others = successors(ids, pool)
    for row in range(n):
        places = asked[row].nonzero()[:, 0].tolist()
        places = [place for place in places if place + 1 < length]
        if not places:
            continue
        cut = places[(row + 1) * (len(places) - 1) // (n + 1)] if n > 1 else places[len(places) // 2]
        is_text = torch.zeros(length, dtype=torch.bool, device="cpu")
        is_text[cut + 1 :] = asked[row, cut:-1]  # what is asked for is text, not what stands for pictures or padding
        if bool(is_text.any()):
            new[row] = torch.where(is_text.to(ids.device), others[row], ids[row])
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


def earlier_replaced(given: Given, targets: Tensor, facts: Facts) -> Trial | None:
    """Return a trial that replaces the first half of what is asked for in each sample; None if that is nothing.

    The outputs of the other half stay where each depends on its own token alone.
    """
    asked = targets >= 0
    is_early = asked & (2 * asked.cumsum(1) <= asked.sum(1, keepdim=True))
    if not bool(is_early.any()):
        return None
    new = torch.where(is_early, successors(given.tensor, targets[asked]), given.tensor)
    return Trial(
        changed={given.place: new},
        parts=Places((asked & ~is_early).cpu()),
        what="earlier tokens replaced",
        whom="the outputs after them",
        keys=frozenset({facts.logits}),
    )


def follow_each_other(tokens: Tensor) -> bool:
    """Return whether a token tells of the next: pairs of neighbours come again more often than in any other order.

    A permutation test over the tokens of a batch, [n, length]: of `_ORDERS` orders drawn at random none has as many
    pairs that come again. Tokens that are drawn one by one pass it once in `_ORDERS` times.
    """
    known = tokens.cpu().numpy()
    found = _pairs_again(known)
    drawn = np.random.default_rng(0)
    return all(_pairs_again(drawn.permutation(known.ravel()).reshape(known.shape)) < found for _ in range(_ORDERS))


def _pairs_again(tokens: NDArray[np.integer[Any]]) -> int:
    """Return how many two pairs of neighbours are the same."""
    pairs = tokens[:, :-1].astype(np.int64) * (int(tokens.max()) + 1) + tokens[:, 1:]
    counts = np.unique(pairs, return_counts=True)[1]
    return int((counts * (counts - 1)).sum())


def successors(values: Tensor, pool: Tensor) -> Tensor:
    """Return for each value the next larger one in the pool; for the largest, the smallest.

    Not the same ones in another order: a mean over them would not notice.
    """
    known = pool.unique().to(values.dtype)
    return known[torch.searchsorted(known, values.contiguous(), right=True) % len(known)]
