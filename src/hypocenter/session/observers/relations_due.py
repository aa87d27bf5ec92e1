"""When relations are looked at by default, in any framework, and how long that may take."""

from __future__ import annotations

from collections.abc import Sequence

DUE, THEN_EVERY = frozenset({1, 2, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512}), 1000  # steps
AGAIN_S, SHARE = 0.5, 0.002  # what it may take once all was asked: so much, or of the time of the run
AGAIN, MOST_AGAIN_S = 4, 2.0  # or so many more looks, if they take no longer than that in all
GROWN, MOST_GROWN = 1.25, 4  # by what a dimension of what is given is longer than at any look; looks for that

Shape = tuple[int, ...]


def is_due(step: int) -> bool:
    """Return whether relations are looked at by default. A schedule of so many words takes a call for each."""
    return step in DUE or step % THEN_EVERY == 0


def are_longer(shapes: Sequence[Shape], longest: Sequence[Shape]) -> bool:
    """Return whether a dimension is longer than at any look, and more than a little: masks are made for a length."""
    return any(
        size > GROWN * known
        for shape, before in zip(shapes, longest, strict=False) if len(shape) == len(before)
        for size, known in zip(shape, before, strict=True)
    )  # fmt: skip


def joined(some: Sequence[Shape], others: Sequence[Shape]) -> list[Shape]:
    """Return the longest of each dimension; the others where they are not alike."""
    if [len(shape) for shape in some] != [len(shape) for shape in others]:
        return list(others)
    return [tuple(map(max, a, b)) for a, b in zip(some, others, strict=True)]
