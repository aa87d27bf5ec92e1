"""A replay on one rank, while the others train, must not wait for them and must not send them anything.

Where a model needs all its ranks to compute, it is done again on all of them together (`own_groups`), or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.whole import fsdp1, zero3
from hypocenter.replay.whole import model as sharding
from hypocenter.tap.collective_ops import is_collective, is_wrapped
from hypocenter.tap.dispatch import Mode
from hypocenter.tap.numbering import is_one_of_many

_DATA_PARALLEL = frozenset({
    ("torch", "DistributedDataParallel"), ("torch", "DataParallel"), ("deepspeed", "DeepSpeedEngine"),
    ("megatron", "DistributedDataParallel"),
})  # fmt: skip
"""(top package, class in the MRO) of wrappers around a whole model, which keep it in `module`."""

_OF_MEGATRON = frozenset({("megatron", "DistributedDataParallel")})
_FSDP2 = "FSDPModule"  # each call gathers parameters


def callee(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the module inside a data-parallel wrapper, whose own forward starts collectives; else the function."""
    if not isinstance(function, torch.nn.Module) or not _is_a(function, _DATA_PARALLEL):
        return function
    inner: Callable[..., Any] = function.module  # type: ignore[assignment]
    return _with_engines_casts(function, inner) if hasattr(function, "fp16_auto_cast") else inner


@contextlib.contextmanager
def without_wrappers_hooks(functions: Iterable[Callable[..., Any]]) -> Generator[None, None, None]:
    """Keep data-parallel wrappers from waiting for parameters, or gathering them, when their modules are called.

    Megatron-Core's would, between a backward and the update: the parameters are there, and the next step's forward
    would not gather the new ones.
    """
    with contextlib.ExitStack() as undo:
        for wrapper in functions:
            if isinstance(wrapper, torch.nn.Module) and _is_a(wrapper, _OF_MEGATRON):
                for module in wrapper.modules():
                    sharding.without_hooks(module, undo, lambda hook: _is_of(hook, "megatron.core.distributed"))
        yield


def _is_of(hook: Any, package: str) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(package)


def why_not(function: Callable[..., Any]) -> str:
    """Return why this cannot be called on one rank alone; "" if it can."""
    if not isinstance(function, torch.nn.Module) or not is_one_of_many():
        return ""
    if is_gathered(function) or fsdp1.is_sharded(function):
        return "the parameters are sharded over the ranks (FSDP): a replay on one rank cannot gather them"
    if zero3.is_sharded(function):
        return "the parameters are sharded over the ranks (ZeRO stage 3): a replay on one rank cannot gather them"
    if any(_spans_ranks(parameter) for parameter in function.parameters()):
        return "the parameters are spread over the ranks (DTensor): a replay on one rank would wait for the others"
    return ""


def why_not_together(function: Callable[..., Any]) -> str:
    """Return why this cannot be called again even on all ranks together; "" if it can."""
    if not isinstance(function, torch.nn.Module) or not is_one_of_many():
        return ""
    return sharding.why_not(function)


def is_gathered(function: Callable[..., Any]) -> bool:
    """Return whether FSDP2 gathers its parameters for each call, and reduces their gradients in backward."""
    return isinstance(function, torch.nn.Module) and are_gathered(function.modules())


def are_gathered(parts: Iterable[torch.nn.Module]) -> bool:
    """Return whether FSDP2 does so with one of these."""
    kinds = set(map(type, parts))  # a model has many modules of few kinds
    return any(each.__name__ == _FSDP2 for own in kinds for each in own.__mro__)


def _spans_ranks(parameter: torch.Tensor) -> bool:
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and mesh.size() > 1


class NoCollectives(Mode):
    """Refuse every collective of a group of more than one rank. To be entered around a replay.

    Raises:
        ReplayImpossible: in place of the collective.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_wrapped(types):
            return NotImplemented  # a DTensor makes its collectives inside
        if is_collective(func) and not _is_alone(func, args):
            name = str(func).partition(".")[2].partition(".")[0].rstrip("_")
            raise ReplayImpossible(
                f"the model itself communicates with other ranks ({name}): a replay on one rank would wait for them"
            )
        return func(*args, **(kwargs or {}))


def _is_alone(func: Any, args: Any) -> bool:
    """Return whether the group of this collective has one rank only."""
    for arg in args:
        try:
            if isinstance(arg, torch.ScriptObject):
                return torch.distributed.ProcessGroup.unbox(arg).size() == 1
            if isinstance(arg, str) and func.namespace != "c10d" and arg not in _REDUCTIONS:
                return torch.distributed.distributed_c10d._resolve_process_group(arg).size() == 1  # type: ignore[arg-type]
        except Exception:
            continue
    return False


_REDUCTIONS = frozenset({"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"})


def _is_a(module: torch.nn.Module, known: frozenset[tuple[str, str]]) -> bool:
    return any((kind.__module__.partition(".")[0], kind.__name__) in known for kind in type(module).__mro__)


def _with_engines_casts(engine: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that casts inputs and sets autocast as DeepSpeed's does, without its collectives."""
    from deepspeed.runtime.torch_autocast import autocast_if_enabled  # it is the engine's: imported long since

    def forward(*args: Any, **kwargs: Any) -> Any:
        if engine.fp16_auto_cast():
            args = engine._cast_inputs_half(args)
        with autocast_if_enabled(engine):
            return inner(*args, **kwargs)

    return forward
