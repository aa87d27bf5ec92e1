"""Whether rows have moved only because they were left out: experts with a capacity, which all samples share.

Each expert is given the rows that were sent to it, up to its capacity, so that it depends on the others which ones are
left out. That is what such a layer is defined to do. That a row is sent to another expert because of other samples, or
comes back in the place of another one, is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from hypocenter.relations.heard import Call
from hypocenter.relations.relation import Trial

LEFT_OUT = "experts with a capacity: which samples are left out depends on the others"
_MOST = 1 << 16  # rows


def are_left_out(before: Sequence[Call], after: Sequence[Call], trial: Trial, limit: float) -> bool:
    """Return whether each row that has moved was given to fewer modules than in the other forward, and to no other.

    Of those that are given some rows only, of which there are two or more, none inside another.

    Args:
        before: the calls of a part of the forward; what shows is the last one.
        after: the same with the change.
        trial: that was made.
        limit: how far what must stay may move.
    """
    shown = [pair for port in before[-1].values if (pair := _pair(before[-1], after[-1], port, trial)) is not None]
    moved = [pair for pair in shown if (trial.parts.moved(*pair) or 0.0) > limit]
    return bool(moved) and all(_is_explained(*pair, before, after, trial, limit) for pair in moved)


def _is_explained(
    old: Tensor, new: Tensor, before: Sequence[Call], after: Sequence[Call], trial: Trial, limit: float
) -> bool:
    layout = old.shape[:-1]
    if old.dim() < 2 or layout.numel() > _MOST:
        return False
    fewer = torch.zeros(layout, dtype=torch.bool, device="cpu")
    given = _given(before, layout), _given(after, layout)
    names = {name for of in given for name, seen in of.items() if not seen}  # an expert that nothing was sent to
    for a, b in zip(before, after, strict=True):
        for port, value in a.values.items():
            pair = _pair(a, b, port, trial) if value.shape[:-1] == layout and port in b.values else None
            if pair is not None:
                rows = [_shares(_vectors(each), of) for each, of in zip(pair, given, strict=True)]
                names.update(*rows[0], *rows[1])
                found = [_is_fewer(*shares) for shares in zip(*rows, strict=True)]
                fewer |= torch.tensor(found, device="cpu").reshape(layout)
    if not bool(fewer.any()) or all(a.startswith(b) or b.startswith(a) for a, b in combinations(names, 2)):
        return False
    held = ~fewer.unsqueeze(-1)
    size = trial.parts.moved(old * held, new * held)
    return size is not None and size <= limit


def _pair(old: Call, new: Call, port: str, trial: Trial) -> tuple[Tensor, Tensor] | None:
    """Return what both calls have at this port, laid out alike."""
    return trial.aligned(old.values[port], new.values[port]) if port in new.values else None


def _given(calls: Sequence[Call], layout: torch.Size) -> dict[str, Counter[bytes]]:
    """Count the vectors that inner modules were given of some rows only, or in another layout."""
    found: dict[str, Counter[bytes]] = {}
    for call in calls[:-1]:
        for value in call.values.values() if not call.is_end else ():
            if value.dim() > 1 and value.shape[:-1] != layout and value.shape[:-1].numel() <= _MOST:
                found.setdefault(call.module[0], Counter()).update(_vectors(value))
    return found


def _vectors(value: Tensor) -> list[bytes]:
    return [row.tobytes() for row in value.float().reshape(-1, value.shape[-1]).numpy()]


def _shares(vectors: list[bytes], given: dict[str, Counter[bytes]]) -> list[dict[str, float]]:
    """Return for each row how often each module was given it; rows that are equal have equal shares in that."""
    n = Counter(vectors)
    return [{name: seen[each] / n[each] for name, seen in given.items() if each in seen} for each in vectors]


def _is_fewer(one: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether one of both was given to the same modules, but to some less often."""
    names = one.keys() | other.keys()
    differences = [one.get(name, 0.0) - other.get(name, 0.0) for name in names]
    return any(differences) and (min(differences) >= 0 or max(differences) <= 0)
