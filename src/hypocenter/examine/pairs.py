"""Each two ranks send each other something, both ways at once: one bad link is seen by itself.

Rounds of disjoint pairs, as in a tournament (the circle method), so that all ranks are busy and none waits long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from hypocenter.examine import patterns
from hypocenter.examine.collectives import Group, done
from hypocenter.examine.links import ALL_PAIRS
from hypocenter.examine.trouble import brief, kind_of

_REPEATS = 3  # of which the quickest counts
_BYTES_ON_CPU, _BYTES_ON_DEVICE = 1 << 20, 1 << 24


def rounds(rank: int, n_ranks: int) -> Iterator[int]:
    """The partner of `rank` in each round; rounds without one are left out, in the same order on all ranks."""
    if n_ranks <= ALL_PAIRS:
        places = n_ranks + n_ranks % 2
        for turn in range(places - 1):
            if rank == places - 1:
                partner = (turn * places // 2) % (places - 1)
            else:
                partner = (turn - rank) % (places - 1)
                partner = places - 1 if partner == rank else partner
            if partner < n_ranks:
                yield partner
        return
    for bit in range((n_ranks - 1).bit_length()):
        partner = rank ^ (1 << bit)
        if partner < n_ranks:
            yield partner


def examine(
    group: Group, ranks: list[int], at: Callable[[str], None], out: dict[str, Any], go: Callable[[str], bool]
) -> None:
    """Talk with each partner: {rank: {"n_wrong", "gib_s"} or {"error", "text"}}. A second call adds to the first.

    Raises:
        Stuck, RuntimeError: the first that fails. A backend that has failed once fails the others too, which is no
            evidence against them.
    """
    for partner in rounds(group.rank, group.size):
        is_second = str(ranks[partner]) in out
        if not go(f"pair/{min(partner, group.rank)}-{max(partner, group.rank)}/{is_second}"):
            out.setdefault(str(ranks[partner]), {"skipped": "no time was left"})
            continue
        at(f"exchanging with rank {ranks[partner]}")
        try:
            found = _exchange(group, partner)
            before = out.get(str(ranks[partner]), {})
            found["n_wrong"] = max(found["n_wrong"], before.get("n_wrong", 0))
            found["gib_s"] = max(found["gib_s"], before.get("gib_s", 0.0))
            out[str(ranks[partner])] = found
        except Exception as error:
            out[str(ranks[partner])] = {"error": kind_of(error), "text": brief(error)}
            raise


def _exchange(group: Group, partner: int) -> dict[str, Any]:
    n_bytes = _BYTES_ON_CPU if group.device.is_cpu else _BYTES_ON_DEVICE
    mine = _letter(group.rank, partner, group, n_bytes)
    received = torch.empty_like(mine)
    fastest_s = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, received, partner)]
        )
        for work in works:
            done(work, group)
        fastest_s = min(fastest_s, time.perf_counter() - started)
    right = _letter(partner, group.rank, group, n_bytes)
    return {"n_wrong": int((received != right).sum()), "n": right.numel(), "gib_s": n_bytes / 2**30 / fastest_s}


def _letter(sender: int, receiver: int, group: Group, n_bytes: int) -> torch.Tensor:
    numbers = patterns.contribution(sender, group.size, n_bytes // 8, torch.int64, salt=receiver + 1)
    return numbers.to(group.device.torch)
