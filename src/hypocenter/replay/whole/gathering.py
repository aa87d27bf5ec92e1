"""Gathers parts over groups of our own, when an operation first reads them, and lets the oldest go for the newest.

Every rank must come to the same gatherings in the same order: before each they tell each other the number of the part,
and the replay ends where those differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.own_groups import OwnGroups
from hypocenter.replay.whole.part import Part
from hypocenter.tap.collective_ops import is_wrapped
from hypocenter.tap.dispatch import Mode
from hypocenter.tap.free_memory import free_bytes

SHARE_OF_FREE_MEMORY = 0.25  # what gathered parameters may take; activations and gradients need the rest


class Gathering:
    """Which parts have values now.

    Args:
        parts: the same ones in the same order on all ranks.
        groups: of our own; None: every part is whole here.
        limit_bytes: that all together may take, the same on all ranks; those that one operation reads may take more.
    """

    def __init__(self, parts: Sequence[Part], groups: OwnGroups | None, limit_bytes: int) -> None:
        self._parts, self._groups, self._limit_bytes = list(parts), groups, limit_bytes
        self._number_of = {each.key: n for n, part in enumerate(parts) for each in part.stand_ins}
        self._present: list[int] = []  # in the order in which they came

    def bring(self, keys: set[int], letting_go: Callable[[set[int]], None]) -> None:
        """Give values to the stand-ins among these storages.

        Args:
            letting_go: told of storages whose values are about to be taken away.

        Raises:
            ReplayImpossible: another rank did not come, or came for another part.
        """
        needed = sorted({self._number_of[key] for key in keys if key in self._number_of})
        for number in needed:
            if number not in self._present:
                self._make_room(self._parts[number].n_bytes, needed, letting_go)
                self._gather(number)
                self._present.append(number)

    def _make_room(self, n_bytes: int, needed: Sequence[int], letting_go: Callable[[set[int]], None]) -> None:
        taken = sum(self._parts[number].n_bytes for number in self._present)
        for number in [n for n in self._present if n not in needed]:
            if taken + n_bytes <= self._limit_bytes:
                return
            part = self._parts[number]
            letting_go({each.key for each in part.stand_ins})
            for each in part.stand_ins:
                each.empty()
            self._present.remove(number)
            taken -= part.n_bytes

    def _gather(self, number: int) -> None:
        part = self._parts[number]
        shard = part.shard()
        flat = shard if part.group is None else self._from_all(number, part, shard)
        for each in part.stand_ins:
            each.fill(flat)

    def _from_all(self, number: int, part: Part, shard: torch.Tensor) -> torch.Tensor:
        """All pieces behind each other, on the host."""
        if self._groups is None:
            raise ReplayImpossible("the parameters are sharded over the ranks: a replay on one rank cannot gather them")
        twin, _ = self._groups.twin(part.group)
        mine = shard.cpu().contiguous()
        try:
            label = torch.tensor([number, mine.numel()], dtype=torch.int64, device="cpu")
            if any(not each.equal(label) for each in _all_gathered(twin, label, part.group.size())):
                raise ReplayImpossible("the ranks use their parameters in different orders")
            return _all_gathered(twin, mine.view(torch.uint8), part.group.size()).flatten().view(shard.dtype)
        except ReplayImpossible:
            raise
        except RuntimeError as error:
            raise ReplayImpossible("in the replay another rank did not come to gather a parameter") from error


def _all_gathered(twin: Any, mine: torch.Tensor, n_ranks: int) -> torch.Tensor:
    """Row by row what each rank has."""
    rows = torch.empty((n_ranks, mine.numel()), dtype=mine.dtype, device="cpu")
    twin.allgather([list(rows)], [mine]).wait()
    return rows


class OnDemand(Mode):
    """Sees to it that what an operation reads is there. To be entered last: what others look at must have values.

    Args:
        letting_go: told of storages whose values are about to be taken away.
    """

    def __init__(self, gathering: Gathering, letting_go: Callable[[set[int]], None]) -> None:
        super().__init__()
        self._gathering, self._letting_go = gathering, letting_go

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions are run eagerly in a replay."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_wrapped(types):
            return NotImplemented
        keys = {tensor.untyped_storage()._cdata for tensor in _plain_tensors((args, kwargs))}
        with _disable_current_modes():
            self._gathering.bring(keys, self._letting_go)
        return func(*args, **kwargs)


def limit_bytes(parts: Sequence[Part]) -> int:
    """What gathered parameters may take on this rank: no part may be larger."""
    devices = {each.tensor.device for part in parts for each in part.stand_ins} | {torch.device("cpu")}
    return int(SHARE_OF_FREE_MEMORY * min(free_bytes(device) for device in devices))


def _plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided and value.device.type != "meta":
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _plain_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _plain_tensors(item)
