"""Fresh memory filled with NaN: a result that changes was made of memory that nobody has written.

`torch.empty` and its kin give memory as it is. A program that reads some of it before it is written computes with
whatever lay there: mostly zeros, so that nothing is seen for long. Within this mode such tensors come full of NaN. Only
floating-point ones: a number of them that is read as an index would make the program fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from hypocenter.tap.dispatch import ReplayMode
from hypocenter.tap.op_context import OpContext, OpPlace
from hypocenter.tap.tape import storage_of
from hypocenter.tap.tree import tensors
from hypocenter.tap.unwritten import UnwrittenRead

HELD_BYTES = 256 << 20  # of fresh memory is held until the end; what comes after so much is left as it is
_FRESH = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})


def makes_room(func: Any, out: Any) -> bool:
    """Return whether an operator has given floating-point memory as it is."""
    return (
        func.__name__.partition(".")[0] in _FRESH
        and type(out) is torch.Tensor
        and out.is_floating_point()
        and out.numel() > 0
        and not out.is_meta
    )


class Poison(ReplayMode):
    """Fills fresh floating-point memory, and finds who reads it unwritten.

    Args:
        context: where operators run; None: it is only asked whether anybody reads it, which costs far less.
        is_chosen: told of each fresh tensor's number, in order from 0: whether it is filled. Others are made zero.
        fill: with another number than NaN `read` stays None.

    Attributes:
        n_fresh: how many fresh tensors there were.
        read: the first operator whose output holds NaN because of a tensor that was filled.
    """

    def __init__(
        self, context: OpContext | None, is_chosen: Callable[[int], bool] = lambda _: True, *, fill: float = math.nan
    ) -> None:
        super().__init__()
        self._context, self._is_chosen, self._fill = context, is_chosen, fill
        self._made: dict[int, tuple[str, OpPlace, torch.Tensor]] = {}  # by storage; holds it: the key is not given anew
        self._n_bytes = 0
        self.n_fresh = 0
        self.read: UnwrittenRead | None = None

    def clean(self) -> None:
        """Leave none of our NaN in memory that the program may get next. To be called once results are judged.

        What has been written there since stays: a cache of the program's may have kept it.
        """
        with torch.no_grad():
            for _, _, tensor in self._made.values():
                tensor.detach().masked_fill_(tensor.isnan(), 0.0)
        self._made.clear()

    @property
    def handed_on(self) -> UnwrittenRead | None:
        """The first tensor that was filled and that no operator has read, as it is a result itself; None without."""
        made = next(iter(self._made.values()), None)
        return None if made is None else UnwrittenRead(op=made[0], place=made[1], maker=made[0], made_at=made[1])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload):
            return out
        place = _NOWHERE if self._context is None else self._context.place(str(func))
        if makes_room(func, out):
            self.n_fresh += 1
            self._n_bytes += out.nbytes
            is_filled = self._is_chosen(self.n_fresh - 1) and self._n_bytes <= HELD_BYTES
            out.fill_(self._fill if is_filled else 0.0)
            if is_filled:
                self._made[storage_of(out)] = str(func), place, out
        elif self._context is not None and self._made and self.read is None and math.isnan(self._fill):
            self._look(str(func), place, (args, kwargs), out)
        return out

    def _look(self, op: str, place: OpPlace, given: Any, out: Any) -> None:
        """Note the operator if it has made a NaN elsewhere out of one of our filled tensors."""
        read = [t for _, t in tensors(given)]
        ours = next((made for t in read if (made := self._made.get(storage_of(t))) is not None), None)
        if ours is None:
            return
        inside = {storage_of(t) for t in read}  # views, and what it writes to
        results = [t for _, t in tensors(out) if storage_of(t) not in inside and t.is_floating_point()]
        if any(bool(torch.isnan(t).any()) for t in results):
            self.read = UnwrittenRead(op=op, place=place, maker=ours[0], made_at=ours[1])


_NOWHERE = OpPlace("forward", "", "", None, 0)
