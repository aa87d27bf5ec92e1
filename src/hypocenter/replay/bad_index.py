"""Which index is out of range, found by trying: no operator is known by name.

The failing call is made again with the whole numbers of one argument replaced by 0, which is in any table: if it goes
through then, these are to blame. Values are put back one by one, and one with which the call raises is a bad one. How
long the table is follows from the sizes of the other arguments, tried in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.replay.failed_call import FailedCall
from hypocenter.tap.tree import replace_tensors, tensors

PATIENCE_S = 10.0  # the program is dying; others may wait for its device
MOST_BYTES = 1 << 30  # of the arguments, which are copied for each trial: an operator may write to them
MOST_BAD = 32  # different bad values that are looked for one by one
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadIndex:
    """Indices with which a call raises, and without which it does not."""

    argument: str
    tensor: torch.Tensor
    values: tuple[int, ...]  # the bad ones, the one furthest out first
    at: tuple[tuple[int, ...], ...]  # where the first of them sit in the tensor
    size: int | None  # of the table, where a trial showed it: the smallest index that raises is this


def bad_index(call: FailedCall) -> BadIndex | None:
    """Return the bad indices among the arguments of a call that raises; None when it raises for another reason."""
    holder = {**dict(enumerate(call.args)), **call.kwargs}
    if sum(t.numel() * t.element_size() for _, t in tensors(holder)) > MOST_BYTES:
        return None
    trial = _Trial(call)
    for key, value in holder.items():
        for _, tensor in tensors(value):
            if tensor.dtype in _WHOLE and tensor.numel() and trial.passes(tensor, torch.zeros_like(tensor)):
                return _judged(call, trial, call.argument_name(key), tensor)
    return None


def _judged(call: FailedCall, trial: _Trial, argument: str, tensor: torch.Tensor) -> BadIndex | None:
    def raises_with(keep: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return not trial.passes(tensor, torch.where(keep(tensor), tensor, torch.zeros_like(tensor)))

    ordered = torch.unique(tensor).tolist()
    high = _from_outside([v for v in reversed(ordered) if v > 0], lambda v: raises_with(lambda t: t == v))
    low = _each([v for v in ordered if v < 0], lambda v: raises_with(lambda t: t == v))
    bad = [*high, *low]
    if not bad:
        return None
    where = torch.isin(tensor, torch.tensor(bad[:1], dtype=tensor.dtype, device="cpu")).nonzero().tolist()
    sizes = {size for _, t in tensors((call.args, call.kwargs)) if t is not tensor for size in t.shape}
    good = max((v for v in ordered if v >= 0 and v not in high), default=0)
    first_bad = high[-1] if high else None
    return BadIndex(
        argument=argument, tensor=tensor, values=tuple(bad), at=tuple(tuple(at) for at in where[:8]),
        size=_size(trial, tensor, sorted(s for s in sizes if s > good and (first_bad is None or s <= first_bad))),
    )  # fmt: skip


def _size(trial: _Trial, tensor: torch.Tensor, sizes: list[int]) -> int | None:
    """Return the length of the table: the index below it goes through, the index itself does not; None if unknown."""
    for size in sizes:
        if trial.passes(tensor, torch.full_like(tensor, size - 1)) and not trial.passes(
            tensor, torch.full_like(tensor, size)
        ):
            return size
    return None


def _from_outside(values: list[int], is_bad: Callable[[int], bool]) -> list[int]:
    """Return the bad values of a falling list: above the end of a table all are bad, below it none is."""
    if not values or not is_bad(values[0]):
        return []
    first, last = 0, len(values)  # values[first] is bad, values[last] is not
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if is_bad(values[middle]) else (first, middle)
    return values[: first + 1]


def _each(values: list[int], is_bad: Callable[[int], bool]) -> list[int]:
    """Return the bad values below 0, each tried: -1 may count from the end, -100 may mean that there is none."""
    return [value for value in values[:MOST_BAD] if is_bad(value)]


class _Trial:
    """Make a call again and again, on copies of its arguments."""

    def __init__(self, call: FailedCall) -> None:
        self._call = call
        self._until = time.monotonic() + PATIENCE_S

    def passes(self, tensor: torch.Tensor, instead: torch.Tensor) -> bool:
        """Return whether the call goes through with another tensor in this one's place."""
        if time.monotonic() > self._until:
            raise TimeoutError("finding the bad index took too long")

        def copied(each: torch.Tensor) -> torch.Tensor:
            return instead if each is tensor else each.detach().clone()

        args, kwargs = replace_tensors((self._call.args, self._call.kwargs), copied)
        try:
            with torch.no_grad():
                self._call.func(*args, **kwargs)
        except TimeoutError:
            raise
        except Exception:
            return False
        return True


def same_place(index: torch.Tensor, batch: Any) -> tuple[str, torch.Tensor] | None:
    """Return the tensor of a batch that an index is a view of, as (where in the batch, tensor); else None."""
    for name, tensor in tensors(batch):
        is_same = tensor.data_ptr() == index.data_ptr() and tensor.numel() == index.numel()
        if is_same and tensor.dtype == index.dtype and tensor.numel() and tensor.is_contiguous():
            return name, tensor
    return None
