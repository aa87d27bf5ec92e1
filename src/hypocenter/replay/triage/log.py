"""The log of a replay's ops: bits in, bits out; where two devices part, and which of them is not of one mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hypocenter.replay.adjudicate import map_tensors
from hypocenter.replay.triage.wire_format import OpLine
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.storages import UNDEFINED

_ROWS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Products whose rows can be moved: positions of both factors. The bits of a row do not depend on where it stands."""


def line_of(func: Any, args: Any, kwargs: Any, out: Any) -> OpLine | None:
    """Return the line for an op; None for one that gives no tensor."""
    if func.__name__.partition(".")[0] in UNDEFINED:
        return None
    came_in, came_out = _digest((args, kwargs)), _digest(out)
    if came_out is None:
        return None
    return OpLine(str(func), came_in or 0, came_out, _n_moved(func, args, kwargs, out))


def parting(own: Sequence[OpLine], theirs: Sequence[OpLine]) -> int | None:
    """Return the number of the first op that got the same bits on both sides and gave others; None if there is none."""
    for number, (a, b) in enumerate(zip(own, theirs, strict=False)):
        if a.op != b.op:
            return None  # they do not do the same
        if a.came_in == b.came_in and a.came_out != b.came_out:
            return number
    return None


def n_moved_from(lines: Sequence[OpLine]) -> int:
    """Count the elements over all ops that changed when their row was moved."""
    return sum(line.n_moved for line in lines)


def _digest(value: Any) -> int | None:
    found: list[torch.Tensor] = []
    map_tensors(value, found.append)
    numbers = [n for n in to_host(digests(found)) if n is not None]
    total = 0
    for number in numbers:
        total = (total * 0x5851_F42D_4C95_7F2D + number) & ((1 << 63) - 1)  # multiplier of Knuth's MMIX generator
    return total if numbers else None


def _n_moved(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Do a product again with its rows moved by one; count the elements that do not come to the same bits.

    A fault that sits at one place of a device hits another row then. A healthy device may have some too, where the last
    rows are done by other code: only the comparison with a neighbour that has none tells anything.
    """
    positions = _ROWS.get(func.__name__.partition(".")[0])
    if positions is None or not isinstance(out, torch.Tensor) or "out" in kwargs or out.shape[-2] < 2:
        return 0
    rows = list(args)
    rows[positions[0]] = rows[positions[0]].roll(1, -2)
    if positions[0] == 1 and rows[0].dim() >= 2 and rows[0].shape[-2] == out.shape[-2]:
        rows[0] = rows[0].roll(1, -2)
    with torch.no_grad():
        again = func(*rows, **kwargs).roll(-1, -2)
    return int((again.view(_bits(again)) != out.detach().contiguous().view(_bits(out))).sum())


def _bits(tensor: torch.Tensor) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
