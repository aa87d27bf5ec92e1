"""Models whose parameters are sharded by ZeRO-3 or FSDP1, for the time of a replay made of stand-ins."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.own_groups import OwnGroups
from hypocenter.replay.whole import fsdp1, zero3
from hypocenter.replay.whole.part import Part, StandIn
from hypocenter.tap.collective_ops import is_wrapped
from hypocenter.tap.dispatch import Mode
from hypocenter.tap.free_memory import free_bytes

_HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
SHARE_OF_FREE_MEMORY = 0.25  # what gathered parameters may take; activations and gradients need the rest


def is_sharded(root: torch.nn.Module) -> bool:
    """Return whether its parameters are sharded, so that it can be done again with stand-ins only."""
    return zero3.is_sharded(root) or fsdp1.is_sharded(root)


def why_not(root: torch.nn.Module) -> str:
    """Return why it cannot be done again with stand-ins; "" if it can."""
    if zero3.is_sharded(root) and fsdp1.is_sharded(root):
        return "its parameters are sharded by ZeRO stage 3 and by FSDP"
    return zero3.why_not(root) or fsdp1.why_not(root)


class Whole:
    """Stand-ins for everything sharded in these modules. They have no values until an operation reads them.

    Attributes:
        limit_bytes: how much gathered ones may take on this rank.
        why_not: why they cannot be used here, or ''.
    """

    def __init__(self, roots: Iterable[torch.nn.Module]) -> None:
        modules = [module for root in roots if is_sharded(root) for module in root.modules()]
        self._modules = list({id(module): module for module in modules}.values())  # roots may hold each other
        self._of_zero3 = zero3.parts_of(self._modules)
        self._parts = self._of_zero3 + fsdp1.parts_of(self._modules)
        self._of = {id(s.original): s.tensor for s in self._stand_ins() if s.original is not None}
        self._made = {id(s.tensor) for s in self._stand_ins()}
        self._gathering: Gathering | None = None
        self.limit_bytes = limit_bytes(self._parts) if self._parts else 0
        largest = max((part.n_bytes for part in self._parts), default=0)
        self.why_not = (
            "" if largest <= self.limit_bytes else f"a parameter of {largest >> 20} MiB does not fit here whole"
        )

    def __bool__(self) -> bool:
        """Return whether anything is sharded."""
        return bool(self._parts)

    def agree(self, groups: OwnGroups | None, limit_bytes: int) -> None:
        """Gather over these groups from now on, within the least limit of all ranks, which are ready.

        They connect now: a rank that breaks off later can only tell those that it is connected to.

        Raises:
            RuntimeError: another rank did not come.
        """
        for part in self._parts:
            if groups is not None and part.group is not None:
                groups.twin(part.group)
        self.limit_bytes = limit_bytes
        self._gathering = Gathering(self._parts, groups, limit_bytes)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for this tensor, or the tensor itself."""
        return self._of.get(id(tensor), tensor)

    def made(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a stand-in."""
        return id(tensor) in self._made

    def parameters(
        self, named: Sequence[tuple[str, torch.nn.Parameter]], module_name: Callable[[torch.nn.Module], str | None]
    ) -> list[tuple[str, torch.nn.Parameter]]:
        """Return parameters by name, with stand-ins in place of what they stand for, each under its first name."""
        if not self._parts:
            return list(named)
        covered = {id(parameter) for part in self._parts for parameter in part.covered}
        found = [(name, parameter) for name, parameter in named if id(parameter) not in covered]
        for each in self._stand_ins():
            module, key = each.holders[0]
            name = module_name(module)
            found.append((f"{name}.{key}" if name else key, each.tensor))
        return found

    @contextlib.contextmanager
    def in_place(self) -> Generator[None, None, None]:
        """Let modules hold the stand-ins, without the framework's hooks, in this block; afterwards all is as it was."""
        with contextlib.ExitStack() as undo:
            for module in self._modules if self._of_zero3 else ():
                without_hooks(module, undo, zero3.is_hook)
            for module, forward in fsdp1.plain_forwards(self._modules):
                _set(module.__dict__, "forward", forward, undo)
            hold([(m, key, s.tensor) for s in self._stand_ins() for m, key in s.holders], undo)
            yield

    def on_demand(self, letting_go: Callable[[set[int]], None]) -> contextlib.AbstractContextManager[Any]:
        """Return a context that gathers parameters as they are read. To be entered after every other dispatch mode."""
        if self._gathering is None or not self._parts:
            return contextlib.nullcontext()
        return OnDemand(self._gathering, letting_go)

    def _stand_ins(self) -> list[StandIn]:
        return [each for part in self._parts for each in part.stand_ins]


def without_hooks(module: torch.nn.Module, undo: contextlib.ExitStack, are_meant: Callable[[Any], bool]) -> None:
    """Take off those hooks that are meant."""
    for table in _HOOK_TABLES:
        hooks: dict[int, Any] = module.__dict__.get(table) or {}
        if any(map(are_meant, hooks.values())):
            kept = OrderedDict((key, hook) for key, hook in hooks.items() if not are_meant(hook))
            _set(module.__dict__, table, kept, undo)


def hold(held: Sequence[tuple[torch.nn.Module, str, torch.nn.Parameter]], undo: contextlib.ExitStack) -> None:
    """Let modules hold other parameters in new tables; FSDP1 keeps some as plain attributes, which come first."""
    tables: dict[int, dict[str, Any]] = {}
    for module, key, tensor in held:
        table = tables.get(id(module))
        if table is None:
            table = tables[id(module)] = dict(module._parameters.items())
            _set(module.__dict__, "_parameters", table, undo)
        table[key] = tensor
        if key in module.__dict__:
            undo.callback(module.__dict__.__setitem__, key, module.__dict__[key])
            del module.__dict__[key]


def _set(attributes: dict[str, Any], name: str, value: Any, undo: contextlib.ExitStack) -> None:
    """Set an attribute past `Module.__setattr__`, which would register it."""
    if name in attributes:
        undo.callback(attributes.__setitem__, name, attributes[name])
    else:
        undo.callback(attributes.pop, name, None)
    attributes[name] = value


# Every rank must come to the same gatherings in the same order: before each they tell each other the number of the
# part, and the replay ends where those differ.
class Gathering:
    """Know which parts have values now, and gather or drop them.

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
        """Return all pieces behind each other, on the host."""
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
    """Return what each rank has, as a row for each."""
    rows = torch.empty((n_ranks, mine.numel()), dtype=mine.dtype, device="cpu")
    twin.allgather([list(rows)], [mine]).wait()
    return rows


class OnDemand(Mode):
    """Give values to what an operation reads. To be entered last: what others look at must have values.

    Args:
        letting_go: told of storages whose values are about to be taken away.
    """

    def __init__(self, gathering: Gathering, letting_go: Callable[[set[int]], None]) -> None:
        super().__init__()
        self._gathering, self._letting_go = gathering, letting_go

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions are run eagerly in a replay."""
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
    """Return how many bytes gathered parameters may take on this rank: no part may be larger."""
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
