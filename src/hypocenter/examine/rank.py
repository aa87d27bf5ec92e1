"""One rank's examination, from its device to its arithmetic, and everything that was found, as plain data.

`Work` runs in a thread of its own and may hang there for good; `report()` can be asked at any time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hypocenter.examine import arithmetic, collectives, links, pace
from hypocenter.examine.collectives import Group
from hypocenter.examine.device import Device, brief, kind_of, memory, versions
from hypocenter.examine.meeting import Meeting
from hypocenter.examine.request import Request

_ARITHMETIC_S = 3.0  # of an accelerator; on a processor, whose cores the ranks share:
_ARITHMETIC_ON_CPU_S = 0.5
_OP_SHARE = 0.4  # of the time that is left: how long one operation may take before the group is given up
_LEAST_OP_S, _MOST_OP_S = 2.0, 60.0


class Work(threading.Thread):
    """Examines this rank together with those on the roster.

    Args:
        roster: {"ranks": [...], "facts": {rank: {...}}} of `meeting.call_roll`.
        soft_deadline: time.monotonic by which it should be done.
    """

    def __init__(
        self, request: Request, device: Device, meeting: Meeting, roster: dict[str, Any], soft_deadline: float
    ) -> None:
        super().__init__(name="hypocenter-examine", daemon=True)
        self._request, self._device, self._meeting, self._roster = request, device, meeting, roster
        self._deadline = soft_deadline
        self._found: dict[str, Any] = {"arithmetic": {}, "links": {}, "pairs": {}, "barrier": {}, "collectives": {}}
        self._found |= {"pace": {}, "again": [], "small_groups": [], "troubles": []}
        self._at, self._since = "starting", time.monotonic()

    @property
    def at(self) -> str:
        """What it is doing. "waiting ..." and "exchanging ..." depend on others, anything else on this rank alone."""
        return self._at

    @property
    def still_s(self) -> float:
        """The seconds for which it has been doing the same."""
        return time.monotonic() - self._since

    def report(self) -> dict[str, Any]:
        """Return what is known by now."""
        return {
            **self._found, "rank": self._request.rank, "at": self._at, "at_s": self.still_s,
            "device": asdict(self._device), **self._request.carried,
        }  # fmt: skip

    def run(self) -> None:
        """Do all examinations; what goes wrong is a finding."""
        self._phase("device", self._device.use)
        own = {
            "arithmetic": lambda: arithmetic.examine(
                self._device, self._doing, self._found["arithmetic"], self._burn_s()
            )
        }
        for name, phase in own.items():
            self._phase(name, phase)
        if len(self._roster["ranks"]) > 1:
            self._phase("links", self._examine_links)
            self._phase("group", self._examine_group)
        self._doing("done")

    def _burn_s(self) -> float:
        wanted = _ARITHMETIC_ON_CPU_S if self._device.is_cpu else _ARITHMETIC_S
        return max(0.1, min(wanted, 0.2 * (self._deadline - time.monotonic())))

    def _examine_links(self) -> None:
        self._doing("connecting to the others")
        facts = {int(rank): known for rank, known in self._roster["facts"].items()}
        self._found["links"] = links.call(self._request.rank, facts, self._deadline)

    def _examine_group(self) -> None:
        ranks: list[int] = self._roster["ranks"]
        device = self._device if self._roster["backend"] == self._device.backend else _on_cpu(self._device)
        left_s = self._deadline - time.monotonic()
        op_timeout_s = min(_MOST_OP_S, max(_LEAST_OP_S, _OP_SHARE * left_s))
        self._doing(f"waiting in the set-up of the group ({self._roster['backend']})")
        self._found["backend"] = self._roster["backend"]
        store = dist.PrefixStore("hypocenter-doctor", self._meeting.group_store())
        dist.init_process_group(
            self._roster["backend"], store=store, rank=ranks.index(self._request.rank), world_size=len(ranks),
            timeout=timedelta(seconds=op_timeout_s),
        )  # fmt: skip
        group = Group(rank=dist.get_rank(), size=len(ranks), device=device, op_timeout_s=op_timeout_s)
        pace.barrier(group, self._doing, self._found["barrier"])
        links.examine(group, ranks, self._doing, self._found["pairs"], self._go)
        collectives.examine(group, self._doing, self._found["collectives"], self._go)
        self._trace(group)
        pace.examine(group, self._doing, self._found["pace"], self._go)
        links.examine(group, ranks, self._doing, self._found["pairs"], self._go)  # a link that is slow is so again

    def _trace(self, group: Group) -> None:
        """Repeat on all ranks what was wrong anywhere, to see whether it recurs and whose fault it is."""
        ranks: list[int] = self._roster["ranks"]
        for op in collectives.OPS:
            n_wrong = self._found["collectives"].get(op, {}).get("n_wrong", 0)
            self._doing("waiting for what the others found")
            total = self._meeting.vote(f"wrong/{op}", n_wrong, group.size, time.monotonic() + group.op_timeout_s)
            if not total:
                continue
            self._found["again"].append(collectives.again(group, self._doing, op))
            if op != "all-reduce" or not self._go(f"small groups/{op}"):
                continue
            found = collectives.in_small_groups(group.rank, group.size, group, op, self._doing, dist.new_group)
            self._found["small_groups"] += [{**each, "ranks": [ranks[r] for r in each["ranks"]]} for each in found]

    def _phase(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._found["troubles"].append(
                {"phase": name, "at": self._at, "kind": kind_of(error), "text": brief(error)}
            )

    def _doing(self, what: str) -> None:
        self._at, self._since = what, time.monotonic()

    def _go(self, what: str) -> bool:
        """Return whether there is time for it: the first rank that asks decides for all."""
        return bool(self._meeting.claim(f"go/{what}", int(time.monotonic() < self._deadline - 0.5)))


def facts(request: Request, device: Device, listener: links.Listener | None, address: str) -> dict[str, Any]:
    """Return what the others have to know of this rank, before anything is tried."""
    import platform

    return {
        "host": platform.node(), "pid": os.getpid(), "address": address, "port": listener.port if listener else 0,
        "name_is": links.name_resolves_to(), "device": asdict(device), "memory": memory(device), "versions": versions(),
        "local_rank": request.local_rank,
    }  # fmt: skip


def backend_for(facts_of: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Return (backend for all, why not that of the devices): NCCL refuses two ranks on one device."""
    devices = [known["device"] for known in facts_of.values()]
    wanted = {each["backend"] for each in devices}
    serials = [each["serial"] for each in devices if each["serial"]]
    if len(wanted) > 1:
        return "gloo", "the ranks have devices of different kinds"
    if len(set(serials)) < len(serials):
        return "gloo", "two ranks share a device"
    if any(known["memory"] for known in facts_of.values()):
        return "gloo", "a device gives no memory"
    return (wanted.pop(), "") if wanted else ("gloo", "")


def _on_cpu(device: Device) -> Device:
    return Device(kind="cpu", index=0, name=device.name, serial=device.serial, backend="gloo")


def quiet() -> None:
    """Use one thread where the launcher says so, and hide warnings of libraries: they are no findings."""
    import warnings

    warnings.simplefilter("ignore")
    if os.environ.get("OMP_NUM_THREADS", "").isdecimal():
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
