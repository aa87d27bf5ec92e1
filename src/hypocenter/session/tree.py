"""Many ranks as a tree of small gloo groups: what one step of a meeting costs grows with the logarithm of their number.

The ranks of a node are a group, their leaders (the first of each) are grouped by 32, the leaders of those again, until
one is left. A rank is in one group, a leader in some more, so a store answers a bounded number of questions for each
rank, and no rank holds more than some dozens of connections. A maximum goes up (one hop a level) and comes down again
(a broadcast in each group). Whoever wants to send a tensor to another rank connects with that one.

A `Tree` has those methods of a gloo group that the council uses. Nothing in it runs by itself: a work goes on while
somebody waits for it or asks whether it is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

FAN_OUT = 32  # leaders in a group: three levels for 32,768 nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One group that this rank is in."""

    number: int  # from the nodes upward
    members: tuple[int, ...]  # ranks; the first is the leader
    index: int  # of this rank among them

    @property
    def name(self) -> str:
        """The name of the group, the same on all members."""
        return f"{self.number}/{self.members[0]}"

    @property
    def leads(self) -> bool:
        """Whether this rank is the leader of the group."""
        return self.index == 0


def levels_of(rank: int, world_size: int, node: int, fan_out: int = FAN_OUT) -> list[Level]:
    """Return the groups of a rank, from its node upward: those it leads, then at most one that it does not lead.

    Args:
        node: consecutive ranks that are a node; 1: not known.
    """
    found: list[Level] = []
    stride, size = 1, node if node > 1 else fan_out
    while stride < world_size and rank % stride == 0:
        first = rank - rank % (stride * size)
        members = tuple(range(first, min(first + stride * size, world_size), stride))
        found.append(Level(number=len(found), members=members, index=members.index(rank)))
        stride, size = stride * size, fan_out
    return found


class Tree:
    """The groups of one rank.

    Args:
        levels: of `levels_of`.
        groups: one gloo group for each.
        pair: connects with one other rank: a gloo group of two, in which the lower rank is the first.
    """

    def __init__(self, levels: Sequence[Level], groups: Sequence[Any], pair: Callable[[int], Any], rank: int) -> None:
        self.levels, self._groups, self._pair, self._rank = levels, list(groups), pair, rank
        self._pairs: dict[int, Any] = {}

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> TreeWork:
        """Begin to replace each element by its largest over all ranks, in place."""
        (tensor,) = tensors
        return TreeWork(self._largest(tensor, options.timeout), self._broken)

    def allgather(self, into: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any) -> TreeWork:
        """Begin to gather one integer of each rank."""
        (own,), (out,) = tensors, into
        every = torch.full((len(out),), torch.iinfo(torch.int64).min, dtype=torch.int64, device="cpu")
        every[self._rank] = own[0]

        def gathered() -> Generator[Any, None, None]:
            yield from self._largest(every, options.timeout)
            for rank, value in enumerate(out):
                value[0] = every[rank]

        return TreeWork(gathered(), self._broken)

    def connect(self, ranks: Sequence[int]) -> None:
        """Connect with these ranks, which connect with this one: all at once, as in a ring each waits for the next.

        Raises:
            RuntimeError: one did not come.
        """
        failed: list[Exception] = []

        def made(rank: int) -> None:
            try:
                self._pairs[rank] = self._pair(rank)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=made, args=(r,), daemon=True) for r in set(ranks) - set(self._pairs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise RuntimeError(str(failed[0]))

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        """Send tensors to a rank that is connected."""
        return self._pairs[to].send(tensors, int(to > self._rank), tag)

    def recv(self, tensors: list[torch.Tensor], frm: int, tag: int) -> Any:
        """Receive tensors from a rank that is connected."""
        return self._pairs[frm].recv(tensors, int(frm > self._rank), tag)

    def _largest(self, tensor: torch.Tensor, timeout: timedelta) -> Generator[Any, None, None]:
        """Yield the works of an all-reduce one by one; the next begins when the one before is over."""
        from torch.distributed import BroadcastOptions, GatherOptions

        up: Any = GatherOptions()
        up.rootRank, up.timeout = 0, timeout
        down: Any = BroadcastOptions()
        down.rootRank, down.timeout = 0, timeout
        for level, group in zip(self.levels, self._groups, strict=True):
            parts = [torch.empty_like(tensor) for _ in level.members] if level.leads else []
            yield group.gather([parts] if parts else [], [tensor], up)
            if parts:
                torch.amax(torch.stack(parts), 0, out=tensor)
        for group in reversed(self._groups):
            yield group.broadcast([tensor], down)

    def _broken(self) -> None:
        """Let go of all groups: a rank that waits for this one hears of it at once, and lets go of the next."""
        self._groups, self._pairs = [], {}
        self.levels = []


class TreeWork:
    """A chain of works that behaves like one work of torch.distributed: ask if it is over, or wait for it.

    Args:
        steps: gives the works.
        broken: called when one has failed.
    """

    def __init__(self, steps: Generator[Any, None, None], broken: Callable[[], None]) -> None:
        self._steps, self._tell = steps, broken
        self._error: RuntimeError | None = None
        self._now: Any = None
        self._next()

    def is_completed(self) -> bool:
        """Take every step that can be taken, and return whether the chain is over, well or not."""
        while self._now is not None and self._now.is_completed():
            self._end(timedelta(seconds=1.0))
        return self._now is None

    def wait(self, timeout: timedelta) -> bool:
        """Wait for the end of the chain.

        Raises:
            RuntimeError: it has failed, or is not over in time.
        """
        until = time.monotonic() + timeout.total_seconds()
        while self._now is not None:
            self._end(timedelta(seconds=max(0.001, until - time.monotonic())))
        if self._error is not None:
            raise self._error
        return True

    def _end(self, timeout: timedelta) -> None:
        """Wait for the step under way, then begin the next. Raises only if the time was too short."""
        try:
            self._now.wait(timeout)
        except RuntimeError as error:
            if not self._now.is_completed():
                raise
            self._fail(error)
        else:
            self._next()

    def _next(self) -> None:
        try:
            self._now = next(self._steps, None)
        except RuntimeError as error:  # a connection that is gone already
            self._fail(error)

    def _fail(self, error: RuntimeError) -> None:
        self._error, self._now = error, None
        self._steps.close()
        self._tell()
