"""How the ranks find together: everyone says through the job's store that it is here, then a side group is built.

All of it happens in a thread of its own, on a connection to the store of its own: training waits for none of it, and
the user's process groups, their names and their order of collectives are not touched. Nothing is registered with
torch.distributed. Few ranks are connected each with each, many as a tree (`hypocenter.session.tree`): what the store is
asked grows as their number does, some dozens of small keys below `hypocenter/` for each.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from hypocenter.session.side_thread import SideThread
from hypocenter.session.tree import Level, Tree, levels_of
from hypocenter.tap.rendezvous import all_at_once

MESH_RANKS = 64  # that are connected each with each
FIRST_POLL_S, LAST_POLL_S = 0.01, 0.5  # between two looks whether all have spoken
POLLS_PER_S = 2000.0  # of all ranks together, at most: one store answers them all
PATIENCE = 6.0  # times agree_timeout_s: how long we look; ranks reach their first update at different times
MAX_MARGIN = 64  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The groups over which the ranks talk once they have found together, and the step from which they meet."""

    flags: Any  # ProcessGroupGloo, or a Tree: one all-reduce per step boundary, nothing else
    talk: Any  # the same: everything that is waited for on the spot
    store: Any  # a connection of our own to the job's store, under our prefix
    start_step: int  # the first step at whose boundary all ranks meet
    waits: bool  # some rank's model communicates: then all meet before each update


class StepCount:
    """The last step boundary that training has passed and the step from which the ranks meet, for two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed = -1
        self._start: int | None = None

    @property
    def passed(self) -> int:
        """The number of the last step boundary that training has passed."""
        return self._passed

    def arrive(self, step: int) -> bool:
        """Note that training is at a boundary, and return whether the ranks may have agreed to meet here."""
        with self._lock:
            self._passed = max(self._passed, step)
            return self._start is not None and step >= self._start

    def propose(self, step: int | None) -> bool:
        """Let the ranks meet from this step on (None: never); return False if training has already passed it."""
        with self._lock:
            possible = step is not None and self._passed < step
            self._start = step if possible else None
            return possible


class Assembly(SideThread):
    """A thread that builds the side groups; `outcome`, or `why_not` if there are none, is set when `over` is."""

    def __init__(
        self, store: Any, *, rank: int, world_size: int, key: str, waits: bool, steps: StepCount, timeout_s: float
    ) -> None:
        super().__init__("hypocenter-assembly", timeout_s)
        self._store = own_connection(store, f"hypocenter/{key}")
        self._rank, self._world_size, self._waits = rank, world_size, waits
        self._steps, self._timeout_s = steps, timeout_s
        self._is_called_off = False
        self.over = threading.Event()
        self.outcome: Assembled | None = None
        self.why_not = ""

    def call_off(self) -> None:
        """Stop assembling: nobody wants the groups any more."""
        self._is_called_off = True

    def work(self) -> None:
        """Tell the others that this rank is here, wait for all of them, and build the groups."""
        try:
            self.outcome = self._assemble()
        except Exception as error:  # the store or a peer is gone
            self.why_not = self.why_not or f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        finally:
            if self.outcome is None:
                self._steps.propose(None)
            self.over.set()

    def _assemble(self) -> Assembled | None:
        store, timeout = self._store, timedelta(seconds=self._timeout_s)
        if self._waits:
            store.set("everyone", "1")
        if self._rank == 0:
            store.set("node", str(_ranks_of_node()))
        store.set(f"here/{self._rank}", "1")
        if store.add("count", 1) == self._world_size:
            store.set("all", "1")
        if not self._all_are_here():
            return None
        waits = bool(store.check(["everyone"]))
        node, devices = int(store.get("node")), _devices()
        groups = [self._group(name, node, timeout, devices) for name in ("flags", "talk")]
        start = self._start_step(groups[0], timeout)
        if start is None:
            self.why_not = "the ranks found no step to begin at"
            return None
        return Assembled(flags=groups[0], talk=groups[1], store=store, start_step=start, waits=waits)

    def _group(self, name: str, node: int, timeout: timedelta, devices: Sequence[Any]) -> Any:
        """Return what all ranks talk over: one gloo group for few ranks, a tree of groups for many."""
        rank, store = self._rank, self._store
        if self._world_size <= MESH_RANKS:
            return side_group(store, name, rank, self._world_size, timeout, devices)
        levels = levels_of(rank, self._world_size, node)
        groups = [
            side_group(store, f"{name}/{each.name}", each.index, len(each.members), timeout, devices) for each in levels
        ]

        def pair(other: int) -> Any:
            low, high = sorted((rank, other))
            return side_group(store, f"{name}/pair/{low}-{high}", int(rank == high), 2, timeout, devices)

        return Tree(levels, groups, pair, rank)

    def _all_are_here(self) -> bool:
        deadline, pause = time.monotonic() + PATIENCE * self._timeout_s, FIRST_POLL_S
        last_s = max(LAST_POLL_S, min(self._world_size / POLLS_PER_S, self._timeout_s / 3))
        while not self._store.check(["all"]):
            if self._is_called_off:
                return False
            if time.monotonic() > deadline:
                missing = who_is_silent(self._store, "here", self._rank, self._world_size, until=deadline + last_s)
                self.why_not = f"{named(missing)} did not say within {PATIENCE * self._timeout_s:.0f} s to take part"
                return False
            time.sleep(pause)
            pause = min(2 * pause, last_s)
        return True

    def _start_step(self, group: Any, timeout: timedelta) -> int | None:
        """Agree with all ranks on a step that none has reached yet; None if training is too fast to find one."""
        margin = 1
        while margin <= MAX_MARGIN:
            step = most(group, [self._steps.passed + margin], timeout)[0]
            impossible = int(not self._steps.propose(step))
            if not most(group, [impossible], timeout)[0]:
                return step
            margin *= 2
        return None


def _ranks_of_node() -> int:
    """Return how many ranks the launcher has put on a node; 1 where it does not say."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(told), MESH_RANKS) if told.isdigit() and int(told) else 1


def own_connection(store: Any, prefix: str) -> Any:
    """Return a view of the store under our own prefix, where possible on a connection that nobody else waits on."""
    from torch.distributed import PrefixStore

    with contextlib.suppress(AttributeError, RuntimeError):  # torch before 2.6; a store without clones
        store = store.clone()
    return PrefixStore(prefix, store)


def side_group(
    store: Any, name: str, rank: int, world_size: int, timeout: timedelta, devices: Sequence[Any] = ()
) -> Any:
    """Make a gloo group that torch.distributed does not know of. Blocks at most `timeout`, until all are connected.

    Args:
        devices: gloo's, shared by several groups. Each has a thread that looks a hundred times a second whether
            anything has come, and so costs CPU time also where nothing is sent. None: the group makes its own.
    """
    from torch.distributed import PrefixStore, ProcessGroupGloo

    own = all_at_once(PrefixStore(name, store), world_size)
    if not devices:
        return ProcessGroupGloo(own, rank, world_size, timeout=timeout)
    make: Any = ProcessGroupGloo
    options = make._Options()
    options._timeout, options._devices, options._threads = timeout, list(devices), 2 * len(devices)  # as torch has them
    return make(own, rank, world_size, options)


def _devices() -> list[Any]:
    """Return the gloo devices that torch would make for a group; none where this version does not show how."""
    from torch.distributed import ProcessGroupGloo

    make: Any = ProcessGroupGloo
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not hasattr(make, "_Options") or not hasattr(make, "create_default_device"):
        return []
    if interfaces:
        return [make.create_device(interface=interface) for interface in interfaces.split(",")]
    return [make.create_default_device()]


def most(group: Any, values: Sequence[int], timeout: timedelta) -> list[int]:
    """Return the largest of each value over all ranks. Waits for them.

    Raises:
        RuntimeError: a rank is gone, or did not come in time.
    """
    tensor = torch.tensor(values, dtype=torch.int64, device="cpu")
    start_most(group, tensor, timeout).wait(timeout)
    return tensor.tolist()


def start_most(group: Any, tensor: torch.Tensor, timeout: timedelta) -> Any:
    """Begin to replace each value by its largest over all ranks, and return the work to wait for."""
    from torch.distributed import AllreduceOptions, ReduceOp

    options: Any = AllreduceOptions()
    options.reduceOp = ReduceOp.MAX
    options.timeout = timeout
    return group.allreduce([tensor], options)


def who_is_silent(store: Any, word: str, rank: int, world_size: int, *, until: float) -> list[int]:
    """Return the ranks that have not written `word/RANK`, as far as is known by `until` (of time.monotonic())."""
    if world_size <= MESH_RANKS:
        return silent(store, word, range(world_size))
    node = int(store.get("node")) if store.check(["node"]) else 1
    look_around(store, word, rank, world_size, node)
    return missing(store, word, until)


def named(ranks: Sequence[int]) -> str:
    """Name ranks in words: "rank 3", "ranks 1, 3 and 12 more", or "no rank"."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}" if ranks else "no rank"


# Who of many ranks has not said a word in the store: each looks at its neighbours in the tree, all read the list.
#
# So a store answers a bounded number of questions for each rank; a list that each made by itself would take the square.

MOST_TOLD = 64  # missing ranks that are written down
PAUSE_S = 0.05  # between two looks at the list


def silent(store: Any, word: str, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that have not written `word/RANK`."""
    return [rank for rank in ranks if not store.check([f"{word}/{rank}"])]


def look_around(store: Any, word: str, rank: int, world_size: int, node: int) -> None:
    """Note who is missing of the ranks that this one leads, and of its leaders; of a missing leader's group all."""
    for level in levels_of(rank, world_size, node):
        _note(store, word, _missing_of(store, word, level, world_size, node))


def missing(store: Any, word: str, until: float) -> list[int]:
    """Return the ranks that others have noted as missing, once there is any note.

    Args:
        until: of time.monotonic(): then it is empty if nothing is there.
    """
    while (n := store.add(f"n-missing/{word}", 0)) == 0 and time.monotonic() < until:
        time.sleep(PAUSE_S)
    found: set[int] = set()
    for number in range(min(n, MOST_TOLD)):
        with contextlib.suppress(Exception):  # counted, and not written yet
            found.add(int(store.get(f"missing/{word}/{number}")))
    return sorted(found)


def _missing_of(store: Any, word: str, level: Level, world_size: int, node: int) -> list[int]:
    leader, *others = level.members
    if level.leads:
        found = silent(store, word, others)
    else:
        found = silent(store, word, [leader])
        found += silent(store, word, others) if found else []
    for each in list(found):  # of a leader that is missing nobody else looks after its groups below
        for below in levels_of(each, world_size, node)[: level.number]:
            found += silent(store, word, below.members[1:])
    return found


def _note(store: Any, word: str, ranks: Sequence[int]) -> None:
    for rank in ranks[:MOST_TOLD]:
        if store.add(f"told/{word}/{rank}", 1) > 1:
            continue  # by another one
        number = store.add(f"n-missing/{word}", 1) - 1
        if number < MOST_TOLD:
            store.set(f"missing/{word}/{number}", str(rank))
