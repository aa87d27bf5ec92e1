"""How the ranks find together: everyone says through the job's store that it is here, then a side group is built.

All of it happens in a thread of its own, on a connection to the store of its own: training waits for none of it, and
the user's process groups, their names and their order of collectives are not touched. Nothing is registered with
torch.distributed; per job there are 2 + (number of ranks) small keys below `hypocenter/`, and two meshes of sockets.
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

MAX_RANKS = 2048  # a mesh of gloo has a socket per pair: 2 * 2048 of them fit below the usual limit of open files
FIRST_POLL_S, LAST_POLL_S = 0.01, 0.5  # between two looks whether all have spoken
PATIENCE = 6.0  # times agree_timeout_s: how long we look; ranks reach their first update at different times
MAX_MARGIN = 64  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The ranks, found together."""

    flags: Any  # ProcessGroupGloo: one all-reduce per step boundary, nothing else
    talk: Any  # ProcessGroupGloo: everything that is waited for on the spot
    store: Any  # a connection of our own to the job's store, under our prefix
    start_step: int  # the first step at whose boundary all ranks meet
    waits: bool  # some rank's model communicates: then all meet before each update


class StepCount:
    """The last step boundary that training has passed, and from which one on the ranks meet; shared by two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed = -1
        self._start: int | None = None

    @property
    def passed(self) -> int:
        """The last boundary passed."""
        return self._passed

    def arrive(self, step: int) -> bool:
        """Training is at a boundary. Returns whether the ranks may have agreed to meet here."""
        with self._lock:
            self._passed = max(self._passed, step)
            return self._start is not None and step >= self._start

    def propose(self, step: int | None) -> bool:
        """Meet from `step` on, if training is not there yet; None: not after all. Returns whether that is possible."""
        with self._lock:
            possible = step is not None and self._passed < step
            self._start = step if possible else None
            return possible


class Assembly(SideThread):
    """Builds the side groups, or finds out why there are none. `outcome` or `why_not` is set when `over` is."""

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
        """Nobody wants the groups any more."""
        self._is_called_off = True

    def work(self) -> None:
        """Speak, wait for all, build."""
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
        store.set(f"here/{self._rank}", "1")
        if store.add("count", 1) == self._world_size:
            store.set("all", "1")
        if not self._all_are_here():
            return None
        waits = bool(store.check(["everyone"]))
        rank, size, devices = self._rank, self._world_size, _devices()
        groups = [side_group(store, name, rank, size, timeout, devices) for name in ("flags", "talk")]
        start = self._start_step(groups[0], timeout)
        if start is None:
            self.why_not = "the ranks found no step to begin at"
            return None
        return Assembled(flags=groups[0], talk=groups[1], store=store, start_step=start, waits=waits)

    def _all_are_here(self) -> bool:
        deadline, pause = time.monotonic() + PATIENCE * self._timeout_s, FIRST_POLL_S
        while not self._store.check(["all"]):
            if self._is_called_off:
                return False
            if time.monotonic() > deadline:
                missing = silent(self._store, "here", self._world_size)
                self.why_not = f"{named(missing)} did not say within {PATIENCE * self._timeout_s:.0f} s to take part"
                return False
            time.sleep(pause)
            pause = min(2 * pause, LAST_POLL_S)
        return True

    def _start_step(self, group: Any, timeout: timedelta) -> int | None:
        """A step that no rank has reached yet. Each rank's training goes on meanwhile."""
        margin = 1
        while margin <= MAX_MARGIN:
            step = most(group, [self._steps.passed + margin], timeout)[0]
            impossible = int(not self._steps.propose(step))
            if not most(group, [impossible], timeout)[0]:
                return step
            margin *= 2
        return None


def own_connection(store: Any, prefix: str) -> Any:
    """A store of our own prefix; where torch can, on a connection that nobody else waits on."""
    from torch.distributed import PrefixStore

    with contextlib.suppress(AttributeError, RuntimeError):  # torch before 2.6; a store without clones
        store = store.clone()
    return PrefixStore(prefix, store)


def side_group(
    store: Any, name: str, rank: int, world_size: int, timeout: timedelta, devices: Sequence[Any] = ()
) -> Any:
    """A gloo group that torch.distributed does not know of. Blocks until all are connected, at most `timeout`.

    Args:
        devices: gloo's, shared by several groups. Each has a thread that looks a hundred times a second whether
            anything has come, and so costs CPU time also where nothing is sent. None: the group makes its own.
    """
    from torch.distributed import PrefixStore, ProcessGroupGloo

    if not devices:
        return ProcessGroupGloo(PrefixStore(name, store), rank, world_size, timeout=timeout)
    make: Any = ProcessGroupGloo
    options = make._Options()
    options._timeout, options._devices, options._threads = timeout, list(devices), 2 * len(devices)  # as torch has them
    return make(PrefixStore(name, store), rank, world_size, options)


def _devices() -> list[Any]:
    """Those that torch would make for a group by itself; none where this torch does not show how."""
    from torch.distributed import ProcessGroupGloo

    make: Any = ProcessGroupGloo
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not hasattr(make, "_Options") or not hasattr(make, "create_default_device"):
        return []
    if interfaces:
        return [make.create_device(interface=interface) for interface in interfaces.split(",")]
    return [make.create_default_device()]


def most(group: Any, values: Sequence[int], timeout: timedelta) -> list[int]:
    """The largest of each value over all ranks. Waits for them.

    Raises:
        RuntimeError: a rank is gone, or did not come in time.
    """
    tensor = torch.tensor(values, dtype=torch.int64, device="cpu")
    start_most(group, tensor, timeout).wait(timeout)
    return tensor.tolist()


def start_most(group: Any, tensor: torch.Tensor, timeout: timedelta) -> Any:
    """The same, only begun: the work."""
    from torch.distributed import AllreduceOptions, ReduceOp

    options: Any = AllreduceOptions()
    options.reduceOp = ReduceOp.MAX
    options.timeout = timeout
    return group.allreduce([tensor], options)


def silent(store: Any, word: str, world_size: int) -> list[int]:
    """Ranks that have not written `word/RANK`."""
    return [rank for rank in range(world_size) if not store.check([f"{word}/{rank}"])]


def named(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 1, 3 and 12 more" """
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}" if ranks else "no rank"
