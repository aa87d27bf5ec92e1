"""Ranks in words: lists of them, and their groups by the name of the axis."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypocenter.nouns import Place

_SHOWN = 8  # ranks, or runs of ranks, that a sentence lists


def ranks_text(ranks: Collection[int]) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `ranks 0 to 511`, with what is too much counted."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs]
    more = f" and {sum(b - a + 1 for a, b in runs[_SHOWN:]):,} more" if len(texts) > _SHOWN else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(texts[:_SHOWN])}{more}"


def group_text(group: tuple[int, ...], places: Mapping[int, Place], world_size: int) -> str:
    """`all ranks`, `dp`, or the ranks themselves."""
    if len(group) == world_size:
        return "all ranks"
    place = places.get(group[0]) if group else None
    axes = (
        [axis for axis, ranks in place.groups.items() if tuple(sorted(ranks)) == tuple(sorted(group))] if place else []
    )
    return axes[0] if axes else ranks_text(group)


def seconds_text(seconds: float) -> str:
    """`40 ms`, `3.2 s`, `12 min`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
