"""What `cross_entropy` and `nll_loss` are made for, asked of an array of torch's or NumPy's, whichever it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

TOLERANCE, ROUNDINGS = 1e-3, 8  # of sums of probabilities; or so many roundings of their format


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What a loss is given that it is not made for.

    Attributes:
        title: in a few words.
        why: what is seen.
        remedy: what to do.
        is_note: some mean it.
    """

    title: str
    why: str
    remedy: str
    is_note: bool = False


def classes(scores: Any) -> int:
    """Return the dimension of the classes: 1, or 0 where there is only one dimension."""
    return 1 if scores.ndim > 1 else 0


def are_probabilities(values: Any, dim: int, limit: float) -> bool:
    """Whether each row lies between 0 and 1 and sums to 1.

    Args:
        values: in float32 or wider.
        limit: how far a sum may be off.
    """
    if values.shape[dim] < 2 or math.prod(values.shape) == values.shape[dim]:
        return False
    return bool((values >= 0).all()) and bool((abs(values.sum(dim) - 1) <= limit).all())


def given_to_cross_entropy(scores: Any, limit: float) -> Wrong | None:
    """Return what is wrong if probabilities are given in place of scores; arguments as for `are_probabilities`."""
    dim = classes(scores)
    if not are_probabilities(scores, dim, limit):
        return None
    n = scores.shape[dim]
    return Wrong(
        title="cross_entropy is given probabilities",
        why=f"a softmax was taken already: each row lies between 0 and 1 and sums to 1, so that the loss cannot fall "
        f"below {math.log1p((n - 1) / math.e):.3g} for a certain and right answer",
        remedy="give it the scores before the softmax",
    )


def given_to_nll_loss(scores: Any, limit: float) -> Wrong | None:
    """Return what is wrong if probabilities are given in place of their logarithms; arguments as of
    `given_to_cross_entropy`."""
    if not are_probabilities(scores, classes(scores), limit):
        return None
    return Wrong(
        title="nll_loss is given no log-probabilities",
        why="each row lies between 0 and 1 and sums to 1: these are the probabilities themselves, whose gradient "
        "vanishes where the answer is wrong",
        remedy="take log_softmax in place of softmax",
    )


def positive(title: str, scores: Any, limit: float) -> Wrong | None:
    """Return what is wrong if values lie above 0, where no logarithm of a probability does; None if none does."""
    n = int((scores > limit).sum())
    if not n:
        return None
    return Wrong(
        title=title,
        why=f"{n} of {math.prod(scores.shape)} values lie above 0, where no logarithm of a probability does: the "
        "loss has no lower bound, or another one",
        remedy="take log_softmax of the scores first",
    )
