"""torch's DeviceMesh: every mesh that the process makes is noted, and the names of its dimensions are read as our axes.

    mesh ("pp", "dp", "tp")              pp, dp, tp
    mesh ("dp_replicate", "dp_shard")    both are dp: the group is the product of the two (HSDP)
    a mesh without names                 dp when FSDP shards over it, tp when DTensors that are not FSDP's are sharded
                                         over its only dimension; else nothing is claimed

A dimension of another name is no axis of ours. When several meshes know an axis (a mesh, its slices, a flattened one)
the largest group counts; for dp, the largest that shares no other rank with the cp group.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hypocenter.axes import AXES
from hypocenter.tap.topology.layout import Layout, modules_of

_AXIS_OF: dict[str, str] = {
    "data": "dp", "ddp": "dp", "fsdp": "dp", "hsdp": "dp", "zero": "dp", "batch": "dp", "replicate": "dp",
    "shard": "dp", "tensor": "tp", "model": "tp", "mp": "tp", "pipe": "pp", "pipeline": "pp", "stage": "pp",
    "context": "cp", "sp": "cp", "sequence": "cp", "seq": "cp", "ulysses": "cp", "ring": "cp", "expert": "ep",
}  # fmt: skip
"""First word of a dimension's name -> axis; an axis's own name is its own."""

_NOT_AN_AXIS = re.compile(r"(^|_)(cp|ep|tp|pp)$")  # after another word: "dp_cp" is two axes flattened into one


def axis_of(name: str) -> str:
    """Return the axis that a dimension's name means, "" for none: dp_shard -> dp, context_parallel -> cp."""
    words = name.lower().replace("-", "_").removesuffix("_parallel").split("_")
    axis = words[0] if words[0] in AXES else _AXIS_OF.get(words[0], "")
    if len(words) > 1 and axis and "in" not in words and "mod" not in words and _NOT_AN_AXIS.search(name.lower()):
        return ""
    return axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What is kept of a DeviceMesh: not the mesh itself, which holds process groups."""

    names: tuple[str, ...]  # of its dimensions; () when they have none
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # row by row

    def axis_groups(self, axes: Sequence[str], rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield (axis, ranks of its group that hold `rank`) for dimensions of these axes; nothing if it is outside."""
        if self.ranks.count(rank) != 1:
            return
        ranks = np.array(self.ranks).reshape(self.shape)
        here = np.unravel_index(self.ranks.index(rank), self.shape)
        for axis in dict.fromkeys(filter(None, axes)):
            inside = tuple(slice(None) if a == axis else here[dim] for dim, a in enumerate(axes))
            yield axis, tuple(ranks[inside].flatten().tolist())


def mesh_of(mesh: Any) -> Mesh:
    """Return what is kept of a DeviceMesh."""
    ranks: torch.Tensor = mesh.mesh
    names = tuple(str(name) for name in mesh.mesh_dim_names or ())
    return Mesh(names=names, shape=tuple(ranks.shape), ranks=tuple(ranks.flatten().tolist()))


class Meshes:
    """Notes each DeviceMesh as it is made."""

    def __init__(self) -> None:
        self.made: dict[Mesh, None] = {}

    def attach(self) -> Callable[[], None]:
        """Watch `DeviceMesh.__init__`; returns the undo."""
        if not torch.distributed.is_available():
            return lambda: None
        from torch.distributed import device_mesh

        kind: Any = device_mesh.DeviceMesh
        original = kind.__init__

        @functools.wraps(original)
        def made(mesh: Any, *args: Any, **kwargs: Any) -> None:
            original(mesh, *args, **kwargs)
            with suppress(Exception):  # what is not noted is not claimed; the user's mesh is made
                self.made[mesh_of(mesh)] = None

        kind.__init__ = made

        def undo() -> None:
            if kind.__init__ is made:
                kind.__init__ = original

        return undo


def layout(meshes: Iterable[Mesh], roots: Sequence[torch.nn.Module], rank: int) -> Layout:
    """Return the layout that the meshes know, and those that the parameters of the roots lie on."""
    used = _used(roots)
    candidates: dict[str, list[tuple[int, ...]]] = {}
    for mesh in dict.fromkeys((*meshes, *used)):
        for axis, ranks in mesh.axis_groups(_axes(mesh, used.get(mesh, frozenset())), rank):
            candidates.setdefault(axis, []).append(ranks)
    groups = {axis: max(found, key=len) for axis, found in candidates.items() if axis != "dp"}
    over_context = set(groups.get("cp", ())) - {rank}
    data = [ranks for ranks in candidates.get("dp", ()) if not over_context.intersection(ranks)]
    if data:
        groups["dp"] = max(data, key=len)
    return Layout(source="DeviceMesh", rank=rank, groups=groups)


def _axes(mesh: Mesh, uses: frozenset[str]) -> list[str]:
    n_dims = len(mesh.shape)
    if mesh.names:
        return [axis_of(name) for name in mesh.names]
    if "fsdp" in uses:
        return ["dp"] * n_dims
    return ["tp"] if "sharded" in uses and n_dims == 1 else [""] * n_dims


def axes_without_name(roots: Sequence[torch.nn.Module]) -> dict[int, str]:
    """Return the axis of each mesh without names, by its id, over whose only dimension parameters of the roots lie."""
    used = _used(roots)
    meshes = {
        id(m): m for root in roots for p in root.parameters() if (m := getattr(p, "device_mesh", None)) is not None
    }
    kept = {key: mesh_of(mesh) for key, mesh in meshes.items() if not mesh.mesh_dim_names}
    return {key: axes[0] for key, mesh in kept.items() if (axes := _axes(mesh, used.get(mesh, frozenset())))[0]}


def _used(roots: Sequence[torch.nn.Module]) -> dict[Mesh, frozenset[str]]:
    """Return meshes of the roots' parameters: "fsdp" if FSDP2 shards over it, "sharded" if others are sharded."""
    modules = modules_of(roots)
    of_fsdp = {id(mesh): mesh for mesh in _meshes_of_fsdp(modules)}
    others: dict[int, Any] = {}
    sharded: set[int] = set()
    for module in modules:
        for parameter in module._parameters.values():
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None and id(mesh) not in of_fsdp:
                others[id(mesh)] = mesh
                if any(p.is_shard() for p in getattr(parameter, "placements", ())):
                    sharded.add(id(mesh))
    found = {mesh_of(mesh): frozenset({"sharded"} if key in sharded else ()) for key, mesh in others.items()}
    return found | {mesh_of(mesh): frozenset({"fsdp"}) for mesh in of_fsdp.values()}


def _meshes_of_fsdp(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """Yield the meshes of FSDP2's modules, which only their private state knows."""
    for module in modules:
        get_state = getattr(module, "_get_fsdp_state", None) if type(module).__name__.startswith("FSDP") else None
        if get_state is None:
            continue
        state = get_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            mesh = getattr(getattr(group, "mesh_info", None), "mesh", None)
            if mesh is not None:
                yield mesh
