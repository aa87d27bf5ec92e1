"""Models whose parameters are sharded by ZeRO-3 or FSDP1, for the time of a replay made of stand-ins."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import torch

from hypocenter.replay.own_groups import OwnGroups
from hypocenter.replay.whole import fsdp1, zero3
from hypocenter.replay.whole.gathering import Gathering, OnDemand, limit_bytes
from hypocenter.replay.whole.part import StandIn

_HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_sharded(root: torch.nn.Module) -> bool:
    """Whether it can be done again with stand-ins only."""
    return zero3.is_sharded(root) or fsdp1.is_sharded(root)


def why_not(root: torch.nn.Module) -> str:
    """Why it cannot, or ''."""
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
        """Whether anything is sharded."""
        return bool(self._parts)

    def agree(self, groups: OwnGroups | None, limit_bytes: int) -> None:
        """All ranks are ready: gather over these groups, within the least limit of all.

        They connect now: a rank that breaks off later can only tell those that it is connected to.

        Raises:
            RuntimeError: another rank did not come.
        """
        for part in self._parts:
            if groups is not None and part.group is not None:
                groups.twin(part.group)
        self._gathering = Gathering(self._parts, groups, limit_bytes)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for this one, or itself."""
        return self._of.get(id(tensor), tensor)

    def made(self, tensor: torch.Tensor) -> bool:
        """Whether it is a stand-in."""
        return id(tensor) in self._made

    def parameters(
        self,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        module_name: Callable[[torch.nn.Module], str | None],
    ) -> list[tuple[str, torch.nn.Parameter]]:
        """Parameters by name, with the stand-ins in place of what they stand for, each under its first name."""
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
        """The modules hold the stand-ins, and the hooks of the framework are off; afterwards all is as it was."""
        with contextlib.ExitStack() as undo:
            for module in self._modules if self._of_zero3 else ():
                without_hooks(module, undo, zero3.is_hook)
            for module, forward in fsdp1.plain_forwards(self._modules):
                _set(module.__dict__, "forward", forward, undo)
            hold([(m, key, s.tensor) for s in self._stand_ins() for m, key in s.holders], undo)
            yield

    def on_demand(self, letting_go: Callable[[set[int]], None]) -> contextlib.AbstractContextManager[Any]:
        """To be entered after every other dispatch mode."""
        if self._gathering is None or not self._parts:
            return contextlib.nullcontext()
        return OnDemand(self._gathering, letting_go)

    def _stand_ins(self) -> list[StandIn]:
        return [each for part in self._parts for each in part.stand_ins]


def without_hooks(module: torch.nn.Module, undo: contextlib.ExitStack, are_meant: Callable[[Any], bool]) -> None:
    """Take those hooks off that are meant."""
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
    """An attribute past `Module.__setattr__`, which would register it."""
    if name in attributes:
        undo.callback(attributes.__setitem__, name, attributes[name])
    else:
        undo.callback(attributes.pop, name, None)
    attributes[name] = value
