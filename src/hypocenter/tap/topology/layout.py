"""What one source knows of the parallel layout: this rank's groups, axis by axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hypocenter.axes import AXES
from hypocenter.nouns import Coords


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Axes that a source knows. `groups`: axis -> global ranks of this rank's group, in the order of coordinates."""

    source: str = ""
    rank: int = 0
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @property
    def coords(self) -> Coords:
        """This rank's position in each group; None for an axis that does not exist."""
        found = {axis: self.groups[axis].index(self.rank) for axis in AXES if self.rank in self.groups.get(axis, ())}
        return Coords(**found)


def merged(layouts: Iterable[Layout], rank: int) -> Layout:
    """Join the axes of several sources; for an axis that two know, the earlier source is believed."""
    groups: dict[str, tuple[int, ...]] = {}
    sources: list[str] = []
    for layout in layouts:
        new = {axis: ranks for axis, ranks in layout.groups.items() if axis not in groups and rank in ranks}
        if new:
            groups |= new
            sources.append(layout.source)
    ordered = {axis: groups[axis] for axis in AXES if axis in groups}
    return Layout(source=", ".join(sources), rank=rank, groups=ordered)


def ranks_of(group: Any) -> tuple[int, ...]:
    """Return global ranks of a process group (None: of all ranks); () for a rank outside. No communication."""
    import torch.distributed as dist

    try:
        return tuple(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return ()


def is_distributed() -> bool:
    """Return whether torch.distributed runs in this process."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def modules_of(roots: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return every module below the roots, once."""
    return list({id(module): module for root in roots for module in root.modules()}.values())
