"""What a placement says of ranks: which hold the same tensor, which of its shards, and which copy of the shard.

A placement is text such as "dp=R tp=S(0)": over the ranks of the dp group the values are copies, over those of the tp
group shards along dimension 0 (S alone: of the flattened values). P is a summand of the values, V a tensor of its own,
and so is an axis not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypocenter.nouns import Place

_WORD = re.compile(r"([\w.+-]+)=(R|P|V|S(?:\(-?\d+\))?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one rank holds of a tensor."""

    tensor: int  # the lowest rank of those that hold parts or copies of the same tensor
    shard: int  # which shard; shards of several axes are numbered together
    summand: int  # which summand
    copy: int  # which copy of the shard
    n_shards: int  # that the tensor has
    n_summands: int


def parsed(placement: str) -> dict[str, str]:
    """Return the kind of each axis: R, S, P or V; empty for a text that is no placement."""
    words = placement.split()
    found = [_WORD.fullmatch(word) for word in words]
    return {match[1]: match[2][0] for match in found if match} if all(found) else {}


def standings(placement: str, places: Mapping[int, Place], ranks: Iterable[int]) -> dict[int, Standing]:
    """Return what each rank holds under a placement; a rank that cannot be placed is left out.

    Args:
        placement: such as "dp=R tp=S(0)"; without a word every rank holds a tensor of its own.
        places: where ranks stand.
        ranks: to place.
    """
    axes = {axis: kind for axis, kind in parsed(placement).items() if kind != "V"}
    if placement.strip() and not parsed(placement):
        return {}
    chosen = [rank for rank in ranks if rank in places and all(_group(places[rank], axis) for axis in axes)]
    tensor = _tensors(chosen, places, axes)
    return {rank: _standing(places[rank], axes, tensor[rank]) for rank in chosen}


def _group(place: Place, axis: str) -> tuple[int, ...]:
    group = place.groups.get(axis, ())
    return group if place.rank in group else ()


def _tensors(ranks: Iterable[int], places: Mapping[int, Place], axes: Iterable[str]) -> dict[int, int]:
    """Return by rank the lowest rank that it is connected to along these axes, recorded or not."""
    root: dict[int, int] = {}

    def find(rank: int) -> int:
        while (up := root.setdefault(rank, rank)) != rank:
            root[rank] = rank = root.setdefault(up, up)
        return rank

    ranks = list(ranks)
    for group in {_group(places[rank], axis) for rank in ranks for axis in axes}:
        for member in group[1:]:
            low, high = sorted((find(group[0]), find(member)))
            root[high] = low
    return {rank: find(rank) for rank in ranks}


def _standing(place: Place, axes: Mapping[str, str], tensor: int) -> Standing:
    number, size = dict.fromkeys("RSP", 0), dict.fromkeys("RSP", 1)
    for axis, kind in axes.items():
        group = _group(place, axis)
        number[kind] = number[kind] * len(group) + group.index(place.rank)
        size[kind] *= len(group)
    return Standing(
        tensor=tensor, shard=number["S"], summand=number["P"], copy=number["R"], n_shards=size["S"],
        n_summands=size["P"],
    )  # fmt: skip
