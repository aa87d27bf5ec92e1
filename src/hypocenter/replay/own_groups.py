"""Process groups of our own for a replay on all ranks: the user's groups see none of its collectives.

If a replay breaks off on one rank, the others wait for it in a group of ours until its timeout, not in one of the
user's, where the next collective of training would answer them and be taken for what they wait for. Each group that a
replay uses gets a twin over gloo, connected when it is first used; values on a device go over the host. Every
collective has returned its result when the call returns: a tracer can look at it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.tap.collective_ops import is_collective, is_wrapped, result_of
from hypocenter.tap.dispatch import Mode
from hypocenter.tap.rendezvous import all_at_once

_c10d: Any = getattr(torch._C, "_distributed_c10d", None)  # None where torch was built without it
MOST_RANKS = 1024  # of one group: each rank reads 8 bytes for each pair, 9 GB through one store
_AVERAGE = "avg"
_OWN = "hypocenter-"  # begins the name of each group of ours
_AVG, _PREMUL_SUM = 1, 8  # of c10d::ReduceOp::RedOpType, which gloo does not know


class OwnGroups:
    """Twins of the process groups of this job.

    Args:
        store: where ranks find each other, under a prefix of its own for each replay.
        timeout_s: of each collective.
    """

    def __init__(self, store: Any, timeout_s: float) -> None:
        self._store, self._timeout = store, timedelta(seconds=timeout_s)
        self._twins: dict[str, tuple[Any, str]] = {}

    def twin(self, group: Any) -> tuple[Any, str]:
        """Return the group that stands for one of the user's, and the name by which functional collectives find it."""
        from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo
        from torch.distributed import distributed_c10d as c10d

        name = group.group_name
        if name not in self._twins:
            ranks = c10d.get_process_group_ranks(group)
            key = f"{name}-{hashlib.sha1(repr(ranks).encode(), usedforsecurity=False).hexdigest()[:12]}"
            store = PrefixStore(key, self._store)
            rank, size = group.rank(), group.size()
            if size > MOST_RANKS:
                raise ReplayImpossible(f"a group of {size:,} ranks is not connected for a replay")
            gloo = ProcessGroupGloo(all_at_once(store, size), rank, size, timeout=self._timeout)
            twin: Any = ProcessGroup(store, rank, size)
            twin._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
            twin._set_default_backend(ProcessGroup.BackendType.GLOO)
            own_name = f"{_OWN}{id(self)}-{key}"
            twin._set_group_name(own_name)
            _c10d._register_process_group(own_name, twin)
            self._twins[name] = (twin, own_name)
        return self._twins[name]

    def from_rank(self, root: int, tensor: torch.Tensor) -> None:
        """Fill a tensor on the host, of the same size on all ranks of the job, with what one of them has in it."""
        options = _c10d.BroadcastOptions()
        options.rootRank, options.timeout = root, self._timeout
        self.twin(torch.distributed.distributed_c10d._get_default_group())[0].broadcast([tensor], options).wait()

    def close(self) -> None:
        """End the replay, or break it off here: whoever waits for this rank gets an error at once.

        Nothing of ours is under way at this moment, for every collective was waited for, so nothing is waited for now.
        """
        for _, name in self._twins.values():
            _c10d._unregister_process_group(name)
        self._twins = {}


class OwnCollectives(Mode):
    """Send every collective to the twin of its group, and wait for it.

    Raises:
        ReplayImpossible: a collective that gloo does not know, or to which another rank did not come.
    """

    def __init__(self, groups: OwnGroups) -> None:
        super().__init__()
        self._groups = groups

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions are run eagerly in a replay."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_wrapped(types):
            return NotImplemented
        if not is_collective(func):
            return func(*args, **(kwargs or {}))
        try:
            return _Call(func, args, kwargs or {}, self._groups).made()
        except RuntimeError as error:
            name = func.__name__.partition(".")[0].strip("_")
            raise ReplayImpossible(f"in the replay another rank did not come to its {name}") from error


class OnlyOwn(Mode):
    """Refuse every collective over a group of the user's: one that this rank alone makes is answered by training.

    To be entered around what one rank computes with results of a replay, where a DTensor may ask the other ranks.

    Raises:
        ReplayImpossible: in place of the collective.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_wrapped(types):
            return NotImplemented  # a DTensor makes its collectives inside
        if is_collective(func) and not any(map(_is_own, (*args, *(kwargs or {}).values()))):
            raise ReplayImpossible("what is asked of it takes values of other ranks")
        return func(*args, **(kwargs or {}))


def _is_own(value: Any) -> bool:
    if isinstance(value, torch.ScriptObject) and value._type().qualified_name().endswith("ProcessGroup"):
        value = torch.distributed.ProcessGroup.unbox(value).group_name
    return isinstance(value, str) and value.startswith(_OWN)


class _Call:
    """One collective, with the twin in place of its group."""

    def __init__(self, func: Any, args: Any, kwargs: Any, groups: OwnGroups) -> None:
        self._func, self._groups = func, groups
        self._is_functional = func.namespace != "c10d"
        self._divide_by = 0
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []  # the user's, on the host
        self._device: torch.device | None = None
        self._size = 1
        self._args = [self._own(a) for a in args]
        self._kwargs = {key: self._own(a) for key, a in kwargs.items()}
        if self._divide_by:
            self._divide_by = self._size

    def made(self) -> Any:
        """Make the collective and return its result, as the caller expects it."""
        out = self._func(*self._args, **self._kwargs)
        if self._is_functional:
            return self._functional(out)
        work = out[-1] if isinstance(out, (tuple, list)) else out
        if isinstance(work, torch.ScriptObject):
            torch.distributed.Work.unbox(work).wait()
            out = _with_work(out, _over(work))
        for target in result_of(self._func, self._args, out):
            if self._divide_by:
                target.div_(self._divide_by)
        for users, host in self._staged:
            users.detach().copy_(host)
        return _replaced(out, {id(host): users for users, host in self._staged})

    def _functional(self, out: Any) -> Any:
        def finished(tensor: torch.Tensor) -> torch.Tensor:
            value = torch.ops._c10d_functional.wait_tensor(tensor)
            value = value / self._divide_by if self._divide_by else value
            return value.to(self._device) if self._device is not None else value

        return _mapped(out, finished)

    def _own(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._on_host(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._own(item) for item in value)
        if isinstance(value, str):
            return self._own_name(value)
        if isinstance(value, torch.distributed.ProcessGroup):
            return self._twin(value)[0]
        if isinstance(value, torch.ScriptObject):
            return self._own_object(value)
        return value

    def _own_name(self, value: str) -> str:
        if value == _AVERAGE:
            self._divide_by = 1
            return "sum"
        try:
            group = _c10d._resolve_process_group(value)
        except Exception:  # the name of something else: an operation
            return value
        return self._twin(group)[1]

    def _own_object(self, value: Any) -> Any:
        from torch.distributed import ProcessGroup

        kind = value._type().qualified_name()
        if kind.endswith("ProcessGroup"):
            return self._twin(ProcessGroup.unbox(value))[0].boxed()
        if kind.endswith("ReduceOp"):
            number = int(value.op())
            if number == _AVG:
                self._divide_by = 1
                return torch.classes.c10d.ReduceOp()  # a sum
            if number >= _PREMUL_SUM:
                raise ReplayImpossible("a reduction that multiplies first (PREMUL_SUM) is not repeated")
        return value

    def _twin(self, group: Any) -> tuple[Any, str]:
        self._size = group.size()
        return self._groups.twin(group)

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        self._device = tensor.device
        host = tensor.detach().cpu()
        self._staged.append((tensor, host))
        return host


def _over(work: Any) -> Any:
    """Return a work that is over: gloo's may copy the result anew each time that somebody waits."""
    kind = getattr(_c10d, "FakeWork", None)
    return work if kind is None else kind().boxed()


def _with_work(out: Any, work: Any) -> Any:
    return (*out[:-1], work) if isinstance(out, (tuple, list)) else work


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, change) for item in value)
    return value


def _replaced(value: Any, users: dict[int, torch.Tensor]) -> Any:
    return _mapped(value, lambda tensor: users.get(id(tensor), tensor)) if users else value
