"""How a parameter lies over the ranks, axis by axis, from what it *is*: `dp=R tp=S(0)`.

R is a replica, S(dim) a shard, P a summand, V a value of the rank's own. What nothing tells is left out.

    DTensor                     its placements, dimension by dimension of its mesh; of a mesh without names see
                                hypocenter.tap.topology.device_mesh
    beside DTensors over tp     tp=R for every parameter that is not one of them, but for experts
    FSDP1, ZeRO-3               dp=S
    torch's DDP                 dp=R for what it synchronises
    Megatron-Core               tp=S(partition_dim) where `tensor_model_parallel` says so, else tp=R as soon as any
                                parameter carries that mark; dp=R, or dp=V where `allreduce` is False (experts);
                                pp=R for the shared embedding
    a name that says `expert`   dp=V when nothing else is known
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.axes import OUTER_FIRST
from hypocenter.tap.topology.data_parallel import note_wrapper
from hypocenter.tap.topology.device_mesh import axes_without_name, axis_of
from hypocenter.tap.weakly import Ref

_EXPERT = re.compile(r"(^|[._])experts?([._]|$)", re.IGNORECASE)
_SHARED_EXPERT = re.compile(r"shared_expert", re.IGNORECASE)
_WHOLE_GRADIENTS = (
    *("Float16OptimizerWithFloat16Params", "FP32Optimizer"),  # Megatron-Core
    *("FP16_Optimizer", "FP16_UnfusedOptimizer"),  # DeepSpeed without ZeRO
)


def gathered_late(roots: Iterable[torch.nn.Module]) -> set[int]:
    """Return ids of parameters whose new values this rank has only once the next forward has gathered them.

    Megatron-Core's `overlap_param_gather`: after the last update nobody gathers them any more.
    """
    late = (w for w in roots if getattr(getattr(w, "ddp_config", None), "overlap_param_gather", False))
    return {id(parameter) for wrapper in late for parameter in wrapper.parameters()}


class Wrappers:
    """Notes torch's data-parallel wrappers as they are made, weakly, with what they synchronise or shard."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def attach(self) -> Callable[[], None]:
        """Watch `DistributedDataParallel.__init__`; returns the undo."""
        if not torch.distributed.is_available():
            return lambda: None
        from torch.nn.parallel import DistributedDataParallel

        original = DistributedDataParallel.__init__

        @functools.wraps(original)
        def made(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            self._made.append(Ref(wrapper))
            note_wrapper(wrapper)

        DistributedDataParallel.__init__ = made  # pyright: ignore[reportAttributeAccessIssue]

        def undo() -> None:
            if DistributedDataParallel.__init__ is made:
                DistributedDataParallel.__init__ = original

        return undo

    def alive(self, roots: Iterable[torch.nn.Module]) -> list[Any]:
        """Return the DDP wrappers that exist: those seen being made, and those among the modules of the roots."""
        self._made = [ref for ref in self._made if ref() is not None]
        found = {id(wrapper): wrapper for ref in self._made if (wrapper := ref()) is not None}
        found |= {id(m): m for root in roots for m in root.modules() if _is(m, "DistributedDataParallel")}
        return list(found.values())


class Placements:
    """Placements of the parameters of one optimizer.

    Args:
        parameters: all of them, with their names.
        wrappers: DDP wrappers that exist.
        roots: the models.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, Tensor]], wrappers: Sequence[Any], roots: Sequence[torch.nn.Module]
    ) -> None:
        self.synchronised = {id(p) for wrapper in wrappers for p in _synchronised(wrapper)}
        self._sharded = {id(p) for root in roots for p in _sharded_by_fsdp1(root)}
        self._is_megatron = any(hasattr(p, "tensor_model_parallel") for _, p in parameters)
        self._by_megatron = {id(p) for root in roots for p in _of_megatron_ddp(root)}
        self._axes = axes_without_name(roots)
        self._is_over_tensors = any("tp" in (self._of_dtensor(p) or ()) for _, p in parameters)

    def of(self, name: str, parameter: Tensor) -> str:
        """Return the placement of a parameter, like `dp=R tp=S(0)`."""
        found = self._of_dtensor(parameter)
        if found is None:
            found = self._over_tensors(parameter) | self._over_data(name, parameter)
        if self._is_over_tensors and "tp" not in found and not _EXPERT.search(name):
            found = found | {"tp": "R"}
        return " ".join(f"{axis}={found[axis]}" for axis in OUTER_FIRST if axis in found)

    def _of_dtensor(self, parameter: Any) -> dict[str, str] | None:
        return _of_dtensor(parameter, self._axes.get(id(getattr(parameter, "device_mesh", None)), ""))

    def _over_tensors(self, parameter: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        if getattr(parameter, "shared_embedding", False) or getattr(parameter, "shared", False):
            found["pp"] = "R"
        if getattr(parameter, "tensor_model_parallel", False):
            return found | {"tp": f"S({getattr(parameter, 'partition_dim', 0)})"}
        return found | ({"tp": "R"} if self._is_megatron else {})

    def _over_data(self, name: str, parameter: Any) -> dict[str, str]:
        key = id(parameter)
        if hasattr(parameter, "ds_tensor") or key in self._sharded or getattr(parameter, "_is_flat_param", False):
            return {"dp": "S"}
        if getattr(parameter, "allreduce", True) is False:
            return {"dp": "V"}
        if key in self.synchronised or key in self._by_megatron:
            return {"dp": "R"}
        return {"dp": "V"} if _EXPERT.search(name) and not _SHARED_EXPERT.search(name) else {}


def placement_of_gradient(gradient: Tensor, of_parameter: str, *, is_reduced: bool) -> str:
    """Return the placement of a gradient as the optimizer sees it: its own on an axis, else the parameter's.

    Args:
        gradient: a DTensor tells its own.
        of_parameter: the parameter's.
        is_reduced: False where the optimizer may hold a part of it only (ZeRO, Megatron's distributed optimizer).
    """
    known = dict(word.split("=") for word in of_parameter.split())
    own = _of_dtensor(gradient, next(iter(known)) if len(known) == 1 else "")
    if own is not None:
        both = known | own
        return " ".join(f"{axis}={both[axis]}" for axis in OUTER_FIRST if axis in both)
    if is_reduced:
        return of_parameter
    return " ".join(["dp=V", *(part for part in of_parameter.split() if not part.startswith("dp="))])


def sees_whole_gradients(optimizer: Any) -> bool:
    """Return whether the optimizer is given reduced gradients, of all of the parameter that is here."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return True
    chained = getattr(optimizer, "chained_optimizers", None) or [optimizer]
    return all(type(each).__name__ in _WHOLE_GRADIENTS for each in chained)


def _of_dtensor(tensor: Any, axis_without_name: str) -> dict[str, str] | None:
    """Return the placement of a DTensor by axes, None of another one.

    Args:
        axis_without_name: of the only dimension of a mesh that names none; "": dp for a shard, nothing for a copy.
    """
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return None
    names = mesh.mesh_dim_names or ()
    axis = axis_without_name or ("dp" if placements[0].is_shard() else "")
    axes = [axis_of(str(name)) for name in names] or [axis if len(placements) == 1 else ""] * len(placements)
    found: dict[str, str] = {}
    for axis, placement in zip(axes, placements, strict=True):
        text = _text(placement)
        if axis and found.get(axis, "R") == "R":  # of two dimensions of one axis (HSDP) the sharded one counts
            found[axis] = text
    return found


def _text(placement: Any) -> str:
    if placement.is_replicate():
        return "R"
    if placement.is_partial():
        return "P"
    return f"S({getattr(placement, 'dim', 0)})"


def _synchronised(wrapper: Any) -> Iterable[Tensor]:
    ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
    return [p for name, p in wrapper.module.named_parameters() if name not in ignored and p.requires_grad]


def _sharded_by_fsdp1(root: torch.nn.Module) -> Iterable[Tensor]:
    return [p for module in root.modules() if _is(module, "FullyShardedDataParallel") for p in module.parameters()]


def _of_megatron_ddp(root: torch.nn.Module) -> Iterable[Tensor]:
    is_it = (m for m in root.modules() if _is(m, "DistributedDataParallel", "megatron"))
    return [p for module in is_it for p in module.parameters()]


def _is(module: torch.nn.Module, name: str, package: str = "torch") -> bool:
    return any(k.__name__ == name and k.__module__.partition(".")[0] == package for k in type(module).__mro__)
