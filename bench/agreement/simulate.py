"""Ranks of one process: the assembly and the tree as they are, over a fake store and fake wires with delays.

Every rank has a clock of its own that moves when something reaches it. A message takes one hop; a broadcast among m
ranks as many as a binomial tree is deep; the store answers one request after the other.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest import mock

import torch

from hypocenter.session import assembly
from hypocenter.session.assembly import Assembly, StepCount
from hypocenter.session.tree import Tree, levels_of
from hypocenter.tap.rendezvous import AllAtOnce

HOP_S = 30e-6  # between two nodes, over TCP
STORE_S = 20e-6  # a request that a TCPStore answers
PASSES = 32  # over all ranks, in which each takes the steps it can: twice as many as a meeting has


class Turns:
    """Threads of which one runs at a time, until it waits for something: thousands of them need no lock, and repeat."""

    def __init__(self) -> None:
        self._ready: deque[threading.Semaphore] = deque()
        self._waiting: dict[Any, list[threading.Semaphore]] = defaultdict(list)
        self._asleep: list[tuple[float, int, threading.Semaphore]] = []
        self._happened: set[Any] = set()
        self._own = threading.local()
        self._main = threading.Semaphore(0)
        self._n = 0
        self.now = 0.0

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Each in a thread of its own, to its end."""
        threads = [threading.Thread(target=self._one, args=(each, own)) for each in works if (own := self._added())]
        for thread in threads:
            thread.start()
        while self._ready or self._asleep:
            if not self._ready:
                self.now, _, sleeper = heapq.heappop(self._asleep)
                self._ready.append(sleeper)
            self._ready.popleft().release()
            self._main.acquire()
        if any(thread.is_alive() for thread in threads if not thread.join(1.0)):
            raise RuntimeError("ranks wait for what never comes")

    def wait(self, what: Any) -> None:
        """The others go on until it has happened."""
        if what not in self._happened and hasattr(self._own, "turn"):
            self._waiting[what].append(self._own.turn)
            self._give_way()

    def happen(self, what: Any) -> None:
        """Who has waited for it may go on."""
        self._happened.add(what)
        self._ready += self._waiting.pop(what, [])

    def sleep(self, seconds: float) -> None:
        """The others go on for so long. Not for threads of others."""
        if not hasattr(self._own, "turn"):
            return
        self._n += 1
        heapq.heappush(self._asleep, (self.now + seconds, self._n, self._own.turn))
        self._give_way()

    def _added(self) -> threading.Semaphore:
        self._ready.append(threading.Semaphore(0))
        return self._ready[-1]

    def _one(self, work: Callable[[], None], turn: threading.Semaphore) -> None:
        self._own.turn = turn
        turn.acquire()
        try:
            work()
        finally:
            self._main.release()

    def _give_way(self) -> None:
        self._main.release()
        self._own.turn.acquire()


class Store:
    """The store of a job, as one of its ranks sees it: a dictionary that counts what it is asked."""

    def __init__(self, job: Job, rank: int, prefix: str = "") -> None:
        self._job, self._rank, self._prefix = job, rank, prefix

    def below(self, prefix: str) -> Store:
        """The part under a prefix."""
        return Store(self._job, self._rank, f"{self._prefix}{prefix}/")

    def has_extended_api(self) -> bool:
        """It answers several at once."""
        return True

    def set(self, key: str, value: Any) -> None:
        """One request."""
        with self._asked("set"):
            self._job.values[self._prefix + key] = value if isinstance(value, bytes) else str(value).encode()
            self._job.turns.happen(self._prefix + key)

    def add(self, key: str, amount: int) -> int:
        """One request."""
        with self._asked("add"):
            total = int(self._job.values.get(self._prefix + key, b"0")) + amount
            self._job.values[self._prefix + key] = str(total).encode()
            return total

    def check(self, keys: Sequence[str]) -> bool:
        """One request."""
        with self._asked("check"):
            return all(self._prefix + key in self._job.values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        """One request."""
        with self._asked("wait"):
            pass
        for key in keys:
            self._job.turns.wait(self._prefix + key)

    def get(self, key: str) -> bytes:
        """Two requests, as of torch's client: it waits first."""
        self.wait([key])
        with self._asked("get"):
            return self._job.values[self._prefix + key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Two requests."""
        self.wait(keys)
        with self._asked("multi_get"):
            return [self._job.values[self._prefix + key] for key in keys]

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        self._job.asked[what] += 1
        self._job.of_rank[self._rank] += 1
        yield


@dataclass(slots=True)
class Call:
    """One collective of one group, as far as its ranks have come to it."""

    begun: dict[int, float] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    is_there: bool = False  # everybody whom its result needs


class Job:
    """What the ranks share.

    Args:
        world_size, node: how many, and how many of them are on a node.
        dead: ranks that say nothing.
    """

    def __init__(self, world_size: int, node: int = 8, dead: Sequence[int] = ()) -> None:
        self.world_size, self.node, self.dead = world_size, node, frozenset(dead)
        self.turns = Turns()
        self.values: dict[str, bytes] = {"node": str(node).encode()}
        self.turns.happen("node")
        self.asked: Counter[str] = Counter()
        self.of_rank: Counter[int] = Counter()
        self.clocks = [0.0] * world_size
        self.calls: dict[tuple[str, int], Call] = defaultdict(Call)
        self.n_messages = 0

    def tree(self, rank: int, name: str = "flags") -> Tree:
        """Groups that are connected already."""
        levels = levels_of(rank, self.world_size, self.node)
        groups = [Group(self, f"{name}/{each.name}", each.index, len(each.members), rank) for each in levels]
        return Tree(levels, groups, lambda other: None, rank)


class Group:
    """A gloo group of one rank."""

    def __init__(self, job: Job, name: str, index: int, size: int, rank: int) -> None:
        self.job, self.name, self.index, self.size, self.rank = job, name, index, size, rank
        self._n_calls = 0

    def gather(self, into: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any) -> Work:
        """To the first rank."""
        return self._begin(tensors[0], into[0] if into else None)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        """From the first rank."""
        return self._begin(tensors[0], None, is_down=True)

    def _begin(self, tensor: torch.Tensor, into: list[torch.Tensor] | None, *, is_down: bool = False) -> Work:
        call = self.job.calls[self.name, self._n_calls]
        self._n_calls += 1
        call.tensors[self.index] = tensor.clone() if not is_down or self.index == 0 else tensor
        call.begun[self.index] = self.job.clocks[self.rank]
        if len(call.begun) == self.size or (is_down and self.index == 0):
            call.is_there = True
            self.job.turns.happen(id(call))
        return Work(self, call, tensor, into, is_down)


@dataclass(slots=True)
class Work:
    """Over when the ranks that it needs have come."""

    group: Group
    call: Call
    tensor: torch.Tensor
    into: list[torch.Tensor] | None
    is_down: bool

    def is_completed(self) -> bool:
        """Who only sends is done at once."""
        is_sender = (self.is_down and self.group.index == 0) or (not self.is_down and self.group.index != 0)
        return is_sender or self.call.is_there

    def wait(self, timeout: timedelta) -> bool:
        """For the ranks that it needs."""
        job, group = self.group.job, self.group
        if not self.is_completed():
            job.turns.wait(id(self.call))
        if self.is_down and group.index:
            self.tensor.copy_(self.call.tensors[0])
            hops = math.ceil(math.log2(group.size))
            job.clocks[group.rank] = max(job.clocks[group.rank], self.call.begun[0] + hops * HOP_S)
            job.n_messages += 1
        elif self.into is not None:
            for index, part in enumerate(self.into):
                part.copy_(self.call.tensors[index])
            job.clocks[group.rank] = max(self.call.begun.values()) + HOP_S
            job.n_messages += group.size - 1
        return True


def meet(job: Job, values: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
    """One meeting of all ranks: what each heard, and when the last one did."""
    options = mock.Mock(timeout=timedelta(seconds=10))
    tensors = [torch.tensor(each, dtype=torch.int64) for each in values]
    works = [job.tree(rank).allreduce([tensor], options) for rank, tensor in enumerate(tensors)]
    for _ in range(PASSES):
        works = [work for work in works if not work.is_completed()]
    if works:
        raise RuntimeError(f"{len(works)} ranks wait for each other")
    return [tensor.tolist() for tensor in tensors], max(job.clocks)


def assemble(job: Job, timeout_s: float = 120.0) -> list[Assembly]:
    """All ranks that live find together, each in a thread of its own."""
    threading.stack_size(256 << 10)
    stands_in = {
        "own_connection": lambda store, prefix: store, "side_group": _connected,
        "_ranks_of_node": lambda: job.node, "_devices": list,
    }  # fmt: skip
    with mock.patch.multiple(assembly, **stands_in):
        found = [
            Assembly(
                Store(job, rank),
                rank=rank,
                world_size=job.world_size,
                key="",
                waits=True,
                steps=StepCount(),
                timeout_s=timeout_s,
            )
            for rank in range(job.world_size)
            if rank not in job.dead
        ]
        with mock.patch.object(assembly.time, "sleep", job.turns.sleep):
            job.turns.run([each.work for each in found])
    return found


def _connected(store: Store, name: str, rank: int, world_size: int, timeout: timedelta, devices: Any = ()) -> Group:
    """What gloo asks of the store to connect a group."""
    own: Any = AllAtOnce(store.below(name), world_size)
    own.set(f"0/{rank}", b"address")
    for other in range(world_size):
        own.wait([f"0/{other}"], timeout)
        own.get(f"0/{other}")
    return Group(store._job, name, rank, world_size, store._rank)
