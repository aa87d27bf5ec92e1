"""What every remedy looks like to the search that tries them, and all that lie in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hypocenter.catalogue import Catalogue
from hypocenter.diagnose.evidence import Evidence


def _one_scale(loss_scale: float) -> Sequence[float]:
    return (1.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyKind:
    """One way to cure a step: how to apply it in a replay, and how to say it.

    A replay with it is `replayer.run(..., around=kind.around(modules), seed_scale=s)` for `s` in
    `kind.seed_scales(loss_scale)`, in that order, until one is finite.
    """

    name: str  # nouns.Remedy.action: fp32-island, bf16-island, prescale, lower-scale, clamp
    order: int  # preference; the smallest is offered first when several cure
    applies: Callable[[Evidence | None], bool]  # worth a replay? With None (no evidence) the general answer
    around: Callable[[Sequence[nn.Module]], contextlib.AbstractContextManager[Any]]  # each module with all below it
    text: Callable[[Sequence[str]], str]  # module paths -> words a person can apply; "" is the model itself
    seed_scales: Callable[[float], Sequence[float]] = _one_scale  # loss scale -> seed_scale arguments to try
    takes_modules: bool = True  # False: the remedy is about the whole step and `around` ignores its modules


REMEDIES: Catalogue[RemedyKind] = Catalogue(
    "hypocenter.replay.remedies", entry=lambda _, module: getattr(module, "KIND", None)
)
"""The preferred first: float32 island, bfloat16 island, prescaling, a lower loss scale, and, last, clamping."""
