"""Tokens of an input, and what the loss asks for at their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.relations.facts import Facts, stand_later
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import Trial
from hypocenter.relations.subject import Given, Key

_ORDERS = 400
_FARTHEST = 3  # places behind an output of what it is asked for


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


def asked_replaced(given: Given, key: Key, targets: Tensor, facts: Facts) -> Trial | None:
    """Return a trial for an output that is asked for what stands some places later in a longer input.

    From what is asked for at some place of each sample on, all tokens are replaced, and the outputs up to there must
    stay. It is tried only where they stay if the token that is asked for is left: where the model does not see farther.
    """
    ids, n = given.tensor, facts.n_rows
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or ids.shape[0] != n or targets.numel() % n:
        return None
    asked_for = targets.reshape(n, -1)
    asked, length = asked_for >= 0, asked_for.shape[1]
    if ids.shape[1] < length or not bool(asked.any()):
        return None
    found = [later for later in range(_FARTHEST + 1) if _stand_later(ids, asked_for, later)]
    if len(found) != 1 or not found[0] or (found[0] == 1 and ids.shape[1] == length):
        return None  # `later_replaced` is for the last
    later = found[0]
    others, stays = successors(ids, asked_for[asked]), torch.zeros_like(asked)
    all_new, but_first = ids.clone(), ids.clone()
    for row in range(n):
        places = asked[row].nonzero()[:, 0].tolist()
        places = [place for place in places if place + later + 1 < ids.shape[1]]
        if not places:
            continue
        cut = places[(row + 1) * (len(places) - 1) // (n + 1)] if n > 1 else places[len(places) // 2]
        all_new[row, cut + later :] = others[row, cut + later :]
        but_first[row, cut + later + 1 :] = others[row, cut + later + 1 :]
        stays[row, : cut + 1] = asked[row, : cut + 1]
    if not bool(stays.any()):
        return None
    whom, keys = "the outputs that are asked for them, and those before", frozenset({key})
    parts = Places(stays.cpu())
    farther = Trial(changed={given.place: but_first}, parts=parts, what="later tokens replaced", whom=whom, keys=keys)
    return Trial(
        changed={given.place: all_new}, parts=parts, what=f"tokens {later} places later replaced", whom=whom, keys=keys,
        only_if=farther,
    )  # fmt: skip


def _stand_later(ids: Tensor, asked_for: Tensor, later: int) -> bool:
    """Return whether what is asked for stands so many places later in an input that is at least as long."""
    length = min(asked_for.shape[1], ids.shape[1] - later)
    return length > 0 and stand_later(ids[:, : length + later], asked_for[:, :length], later)


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
