"""The council of the ranks: at a step boundary each says whether its step failed; no rank waits for it twice in vain.

The ranks find together in the background (`hypocenter.session.assembly`). From an agreed step on they *meet* at each
boundary: one all-reduce (MAX) of [failed, suspect, poisoned, step, -step] over gloo groups of our own, started right after the
check of the gradients. When some rank's model communicates, so that only all together could do its step again, all wait
for the answer before the update; otherwise nobody waits, and what the others said is known at the next boundary.

The council closes for good on a rank when a wait exceeds its timeout, when a peer is gone, or when the ranks turn out to
be at different steps. That is said once; training goes on. Closing because of different steps also leaves a row: phase
"comm", site "agreement", port "value", the number of steps between the first and the last rank.

For observers, as `context.council` (every call is made by *all* ranks at the same boundary, or it costs each of them a
timeout and the council; every call returns None when there is no council or it had to close):

    council.is_open                                      whether it is known here
    council.meets_at(step)                               whether it can be asked, by all ranks, at this step
    council.gather(value: int) -> list[int] | None       everybody's integer, by rank
    council.most(values) -> list[int] | None             the largest of each over all ranks
    council.exchange(tensor, to=, frm=) -> Tensor | None send one tensor, get another one (any dtype, shape and device; on the CPU)
"""  # noqa: E501

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from hypocenter import launcher
from hypocenter.nouns import Reading
from hypocenter.replay.jointly import Table
from hypocenter.replay.own_groups import OwnGroups
from hypocenter.session.assembly import Assembled, Assembly, StepCount, named, start_most, who_is_silent
from hypocenter.session.check import scalar_reading
from hypocenter.session.side_thread import SideThread, never_freed
from hypocenter.session.tree import Tree
from hypocenter.session.wire import receive, send

_CAN_BE = torch.distributed.is_available()  # torch may be built without it
_world: Any = torch.distributed.distributed_c10d._world if _CAN_BE else None
UNHURRIED = timedelta(hours=12)  # nobody waits for it: a rank may evaluate or save for long


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the ranks said at one boundary between steps: which step it is, and whether any of them has trouble."""

    step: int
    failed: bool  # some rank's step failed, and it asks for a replay
    suspect: bool  # some rank's loss or gradients are not finite
    poisoned: bool  # some rank's parameters are not finite: what follows is a consequence


class Council:
    """How the ranks talk to each other. Closed until all have found together, and for good after the first trouble.

    Args:
        is_wanted: option `agree`.
        timeout_s: the longest that one wait may last.
        warn: takes one line of text.
    """

    def __init__(self, *, is_wanted: bool, timeout_s: float, warn: Callable[[str], None]) -> None:
        self._is_wanted, self._timeout_s, self._warn = is_wanted, timeout_s, warn
        self._generation = 0
        self._job: int | None = None  # id of the default process group that we have assembled for
        self._assembly: Assembly | None = None
        self._groups: Assembled | None = None
        self._steps = StepCount()
        self._under_way: tuple[Any, torch.Tensor] | None = None
        self._next_step = 0
        self._rank, self._world_size = 0, 1
        self._rows: list[Reading] = []
        self._n_replays = 0

    @property
    def is_open(self) -> bool:
        """Whether all ranks have found together, and nothing has happened since."""
        return self._groups is not None

    def meets_at(self, step: int) -> bool:
        """Return whether all ranks meet at this step's boundary: one rank may know of the others some steps before."""
        return self._groups is not None and step >= self._groups.start_step

    @property
    def waits(self) -> bool:
        """Whether all ranks meet before each update."""
        return self._groups is not None and self._groups.waits

    # meetings

    def begin(
        self,
        step: int,
        *,
        failed: bool,
        communicates: Callable[[], bool],
        suspect: bool = False,
        poisoned: bool = False,
    ) -> None:
        """Tell the other ranks, without waiting for them, how this rank's step went: training is at a boundary.

        Args:
            communicates: whether doing a step of this model again takes all ranks. Asked once.
        """
        if not self._is_wanted or not self._is_there(communicates):
            return
        may_meet = self._steps.arrive(step)
        if self._groups is None and (not may_meet or not self._has_assembled()):
            return
        groups = self._groups
        if groups is None or not may_meet or step < self._next_step:
            return
        if self._under_way is not None and not self._is_read(wait=False):
            return  # the last one is not over, and nobody waits for it
        if self._groups is None or step < self._next_step:
            return
        tensor = torch.tensor([int(failed), int(suspect), int(poisoned), step, -step], dtype=torch.int64, device="cpu")
        with self._closing("the ranks could not be told of this step"):
            timeout = timedelta(seconds=self._timeout_s) if groups.waits else UNHURRIED
            self._under_way = start_most(groups.flags, tensor, timeout), tensor

    def end(self) -> Meeting | None:
        """Return what all ranks said at this boundary, waiting for it; None if no model needs all ranks."""
        if self._groups is None or not self._groups.waits or self._under_way is None:
            return None
        _, tensor = self._under_way
        if not self._is_read(wait=True):
            return None
        failed, suspect, poisoned, step, _ = tensor.tolist()
        return Meeting(step=step, failed=bool(failed), suspect=bool(suspect), poisoned=bool(poisoned))

    def _is_read(self, *, wait: bool) -> bool:
        """Return whether the meeting under way is over; if it can never be, close the council and return False."""
        if self._under_way is None or self._groups is None:
            return False
        work, tensor = self._under_way
        if wait:
            self._wait(work, "agree on this step")
        elif not work.is_completed():
            return False
        if not self.is_open:
            return False
        with self._closing("a rank is gone"):
            work.wait(timedelta(seconds=self._timeout_s))  # it is over: raises if it failed
            self._under_way = None
            *_, last, first = tensor.tolist()
            self._next_step = last + 1
            if last != -first and self._groups.waits:
                self._rows.append(scalar_reading("agreement", "comm", float(last + first), self._steps.passed, 0))
                self._close(f"the ranks are at different steps, {-first} to {last}")
        return self.is_open

    # talk

    def gather(self, value: int, timeout_s: float | None = None) -> list[int] | None:
        """Return the integers that all ranks gave, in the order of the ranks; None if a rank did not answer."""
        from torch._C._distributed_c10d import AllgatherOptions

        options = AllgatherOptions()
        options.timeout = self._timeout(timeout_s)
        mine = torch.tensor([value], dtype=torch.int64, device="cpu")
        all_of_them = [torch.empty_like(mine) for _ in range(self._world_size)]
        done = self._said("gather a number", lambda g: g.talk.allgather([all_of_them], [mine], options), timeout_s)
        return [int(each) for each in all_of_them] if done else None

    def most(self, values: Sequence[int], timeout_s: float | None = None) -> list[int] | None:
        """Return the largest of each value over all ranks; None if a rank did not answer."""
        tensor = torch.tensor(values, dtype=torch.int64, device="cpu")
        timeout = self._timeout(timeout_s)
        done = self._said("agree on a number", lambda g: start_most(g.talk, tensor, timeout), timeout_s)
        return tensor.tolist() if done else None

    def exchange(self, tensor: torch.Tensor, *, to: int, frm: int, timeout_s: float | None = None) -> Any:
        """Send a tensor to one rank and return the one that another sends, on the CPU; None if it did not come."""
        groups, wait_s = self._groups, self._timeout_s if timeout_s is None else timeout_s
        if groups is None:
            return None
        deadline = time.monotonic() + wait_s
        with self._closing(f"{named([frm])} sent nothing"):
            if isinstance(groups.talk, Tree):
                groups.talk.connect([to, frm])
            sending = send(groups.talk, tensor, to)
            received = receive(groups.talk, frm, deadline)
            for work in sending:
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))
            return received
        return None

    def table(self) -> Table:
        """Return the means to agree with the other ranks that a replay on all ranks needs."""
        return Table(most=self.most, groups=self._own_groups)

    def _own_groups(self) -> OwnGroups | None:
        from torch.distributed import PrefixStore

        if self._groups is None:
            return None
        self._n_replays += 1
        return OwnGroups(PrefixStore(f"replay/{self._n_replays}", self._groups.store), self._timeout_s)

    def take_rows(self) -> list[Reading]:
        """Return the rows that were noted since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def _said(self, what: str, start: Callable[[Assembled], Any], timeout_s: float | None) -> bool:
        if self._groups is None:
            return False
        with self._closing(f"the ranks could not {what}"):
            self._wait(start(self._groups), what, timeout_s)
        return self.is_open

    def _timeout(self, timeout_s: float | None) -> timedelta:
        return timedelta(seconds=self._timeout_s if timeout_s is None else timeout_s)

    # life

    def close(self) -> None:
        """Let go of the groups without waiting for any rank: the session ends."""
        self._is_wanted = False
        if self._assembly is not None:
            self._assembly.call_off()
        self._let_go()

    def forked(self) -> None:
        """Forget the groups in a forked child without ending them: their threads do not run here."""
        self._is_wanted = False
        never_freed((self._groups, self._assembly, self._under_way))
        self._groups = self._assembly = self._under_way = None

    def _is_there(self, communicates: Callable[[], bool]) -> bool:
        """Return whether this is one of many ranks; begin to assemble them when the process group is a new one."""
        distributed = torch.distributed
        group = _world.default_pg if _CAN_BE else None  # what `group.WORLD` gives, in one call
        if group is None:
            if self._job is not None:
                self._adjourn()
            return False
        job = id(group)
        if job != self._job:
            self._adjourn()
            self._job = job
            self._rank, self._world_size = distributed.get_rank(), distributed.get_world_size()
            self._assemble(communicates)
        return self._assembly is not None or self._groups is not None

    def _assemble(self, communicates: Callable[[], bool]) -> None:
        from torch.distributed import distributed_c10d as c10d

        if self._world_size < 2 or "fake" in str(torch.distributed.get_backend()):
            return
        self._generation += 1
        self._steps, self._next_step = StepCount(), 0
        with self._closing("the job has no store"):
            assembly = Assembly(
                c10d._get_default_store(),
                rank=self._rank,
                world_size=self._world_size,
                key=f"agreement/{launcher.attempt()}/{self._generation}",  # torchrun keeps its store over restarts
                waits=communicates(),
                steps=self._steps,
                timeout_s=self._timeout_s,
            )
            assembly.start()
            self._assembly = assembly

    def _has_assembled(self) -> bool:
        """Wait for the assembly to end and return whether the groups exist: at the agreed step it is nearly done."""
        assembly = self._assembly
        if assembly is None or not assembly.over.wait(self._timeout_s):
            return False
        self._assembly, self._groups = None, assembly.outcome
        if self._groups is None:
            self._say_none(assembly.why_not)
        else:
            self._next_step = self._groups.start_step
        return self._groups is not None

    def _adjourn(self) -> None:
        """Let go of the side groups: the process group that they belong to is gone, and another may come."""
        if self._assembly is not None:
            self._assembly.call_off()
        self._let_go()
        self._job = None

    def _let_go(self) -> None:
        groups, under_way, assembly = self._groups, self._under_way, self._assembly
        self._groups = self._under_way = self._assembly = None
        is_idle = under_way is None or under_way[0].is_completed()
        if not is_idle or (assembly is not None and not assembly.over.is_set()):
            never_freed((groups, under_way, assembly))  # a thread may still be working for them

    # trouble

    def _wait(self, work: Any, what: str, timeout_s: float | None = None) -> None:
        """Wait for a collective; after the timeout close the council, and say which ranks have not come.

        A rank that has waited for half of the time says so in the store: who has not is missing.
        """
        total_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + total_s
        lost = _failure_of(work, total_s / 2)
        if work.is_completed() and lost is None:
            return
        roll = _RollCall(self._groups, self._rank, self._world_size, deadline)
        roll.start()
        if lost is None:
            lost = _failure_of(work, max(0.001, deadline - 0.2 * total_s - time.monotonic()))
            if work.is_completed() and lost is None:
                return
        else:
            time.sleep(min(1.0, 0.2 * total_s))  # the others are told at about the same time: let them say so
        roll.ask.set()
        roll.join(max(0.0, deadline - time.monotonic()))
        who = f"no word from {named(roll.missing)}" if roll.missing else "it is not known who is missing"
        is_gone = lost is not None and work.is_completed()
        why = f"a rank is gone ({_brief(lost)})" if is_gone else f"the ranks could not {what} within {total_s:g} s"
        self._close(f"{why}: {who}")

    @contextlib.contextmanager
    def _closing(self, why: str) -> Any:
        """Close the council when an error is raised in this context: the error never reaches training."""
        try:
            yield
        except Exception as error:
            self._close(f"{why}: {_brief(error)}")

    def _close(self, why: str) -> None:
        if self._is_wanted and (self._groups is not None or self._assembly is not None):
            self._say_none(why)
        self._is_wanted = False
        never_freed(self._under_way)
        self._let_go()

    def _say_none(self, why: str) -> None:
        self._is_wanted = False
        self._warn(f"from here on this rank does not ask the others whether a step failed: {why}")


def _failure_of(work: Any, wait_s: float) -> Exception | None:
    """Wait for a collective and return the error that it ended with; None if it went well or is not over yet."""
    try:
        work.wait(timedelta(seconds=wait_s))
    except RuntimeError as error:
        return error if work.is_completed() else None
    return None


def _brief(error: Exception | None) -> str:
    """Return the first sentence of an error, without the path of the source file that gloo puts before it."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.partition("] ")[2].partition(". ")[0] or text[:120] if text.startswith("[/") else text[:120]


def nobody() -> Council:
    """Return a council that never opens, for a run in which the ranks do not talk to each other."""
    return Council(is_wanted=False, timeout_s=0.0, warn=lambda _: None)


class _RollCall(SideThread):
    """A thread that says in the store that this rank waits, and finds out who does not: the store may be gone too."""

    def __init__(self, groups: Assembled | None, rank: int, world_size: int, until: float) -> None:
        super().__init__("hypocenter-roll-call", 1.0)
        self._groups, self._rank, self._world_size, self._until = groups, rank, world_size, until
        self.ask = threading.Event()
        self.missing: list[int] = []

    def call_off(self) -> None:
        """Stop waiting and look now which ranks have not come."""
        self.ask.set()

    def work(self) -> None:
        """Write `waits/RANK` to the store; when asked, list the ranks that have not written theirs."""
        if self._groups is None:
            return
        with contextlib.suppress(Exception):
            self._groups.store.set(f"waits/{self._rank}", "1")
            self.ask.wait(60.0)
            store, rank, world_size = self._groups.store, self._rank, self._world_size
            self.missing = who_is_silent(store, "waits", rank, world_size, until=self._until - 0.1)
