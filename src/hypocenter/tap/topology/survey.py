"""All sources together: where this rank stands now. Asked at each step, worked out only when something has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hypocenter.tap.names import NameMap
from hypocenter.tap.numbering import layer_number
from hypocenter.tap.topology import data_parallel, deepspeed, device_mesh, megatron, pipelining
from hypocenter.tap.topology.layout import Layout, is_distributed, merged

AT_MOST = 4096  # of one model: rank.json is read as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a rank computes: "cuda:3", "NVIDIA H200", "GPU-5c8f...". A CPU has no name and no serial here."""

    device: str = ""
    name: str = ""
    serial: str = ""


def device_of(roots: Sequence[torch.nn.Module]) -> Device:
    """Return the device of the roots' first tensor that is not on the CPU; the CPU when all are there."""
    found = ""
    for root in roots:
        tensors = (*root.parameters(), *torch.nn.Module.buffers(root))  # Megatron's DDP keeps a list in `buffers`
        for tensor in tensors:
            if tensor.device.type not in ("cpu", "meta"):
                return _described(tensor.device)
            found = found or ("cpu" if tensor.device.type == "cpu" else "")
    return Device(device=found)


def _described(device: torch.device) -> Device:
    module: Any = getattr(torch, device.type, None)
    try:
        index = device.index  # of a tensor that exists, never None
        properties = module.get_device_properties(index)
        serial = getattr(properties, "uuid", "")
        return Device(
            device=f"{device.type}:{index}", name=str(getattr(properties, "name", "")),
            serial=f"GPU-{serial}" if device.type == "cuda" and serial else str(serial),
        )  # fmt: skip
    except Exception:  # a backend without these questions
        return Device(device=str(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the sources say together about where this rank stands."""

    layout: Layout = field(default_factory=Layout)
    device: Device = field(default_factory=Device)
    layers: dict[str, int] = field(default_factory=dict[str, int])


class Survey:
    """Asks the sources where this rank stands. Nothing here communicates.

    Args:
        names: its roots are looked at.
    """

    def __init__(self, names: NameMap) -> None:
        self._names = names
        self._meshes = device_mesh.Meshes()
        self._key: object = None
        self._standing = Standing()

    def attach(self) -> Callable[[], None]:
        """Watch for meshes that are made; returns the undo."""
        return self._meshes.attach()

    def standing(self, rank: int, world_size: int) -> Standing:
        """Return what is known now; it is worked out again only when something has changed."""
        key = (
            rank, world_size, is_distributed(), self._names.generation, len(self._meshes.made), megatron.key(),
            pipelining.key(),
        )  # fmt: skip
        if key != self._key:
            self._standing = self._look(rank, world_size)
            self._key = key
        return self._standing

    def _look(self, rank: int, world_size: int) -> Standing:
        roots = self._names.roots()
        now = self._layout(roots, rank, world_size) if is_distributed() else Layout(rank=rank)
        known, layers = self._standing, layer_numbers(self._names.modules())
        return Standing(  # at its end a program takes its process groups down and lets its models go
            layout=now if now.groups else known.layout,
            device=device_of(roots) if roots else known.device,
            layers=layers if len(layers) >= len(known.layers) else known.layers,
        )

    def _layout(self, roots: list[torch.nn.Module], rank: int, world_size: int) -> Layout:
        of_megatron = megatron.layout(rank)
        if of_megatron is not None:
            return merged([of_megatron], rank)
        told: list[Any] = [
            device_mesh.layout(self._meshes.made, roots, rank),
            pipelining.layout(rank),
            deepspeed.layout(roots, rank),
            data_parallel.layout(roots, rank, world_size),
        ]
        return merged([layout for layout in told if layout is not None], rank)


def layer_numbers(named: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, int]:
    """Return, by module path, the numbers that layers carry; only of members of numbered lists.

    A layer hands its number on to its parts (`self_attention.layer_number`): they would say nothing new.
    """
    found: dict[str, int] = {}
    for name, module in named:
        number = layer_number(module)
        if number is not None and name.rpartition(".")[2].isdecimal() and len(found) < AT_MOST:
            found[name] = number
    return found
