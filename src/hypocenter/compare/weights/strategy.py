"""MindSpore's strategy files: how each parameter is cut over the devices of a pipeline stage.

Both kinds: protocol buffers (ckpt_strategy_rank_N.ckpt, as MindSpore 2.10's own descriptors have them) and JSON; of one
stage, or merged, where names begin with the stage and a hyphen. A layout is a matrix of devices, the last dimension the
fastest, and for each dimension of the tensor which dimension of that matrix cuts it, counted from the last (-1: none).
What a parallel optimizer adds: the first dimension of each slice is cut again over devices that would hold copies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hypocenter.compare.weights import wire
from hypocenter.compare.weights.checkpoint import CheckpointError

_AT_MOST_BYTES = 256 << 20  # of a JSON file
_AT_MOST_ITEMS = 1 << 20
_AT_MOST_DEVICES = 1 << 20
_AT_MOST_DIMS = 64
_ITEM, _LAYOUT = 2, 3  # fields of a strategy file
_DEVICES, _MAP, _SPLIT, _FIELD, _OPT_SIZE = 1, 2, 3, 5, 7  # of a layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one parameter is cut over devices."""

    devices: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]  # of each dimension of the tensor the dimensions of `devices`, from the first
    optimizer: int = 1  # parts into which a slice is cut again
    is_uneven: bool = False

    @property
    def n_devices(self) -> int:
        """The number of devices of one pipeline stage."""
        return math.prod(self.devices)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of slices along each dimension, without those that the optimizer makes."""
        return tuple(math.prod(self.devices[i] for i in cut) for cut in self.cuts)

    def place(self, device: int) -> tuple[tuple[int, ...], int]:
        """Return which slice a device holds, and which part of it the optimizer left there."""
        at: list[int] = []
        for size in reversed(self.devices):
            at.insert(0, device % size)
            device //= size
        spread = {i for cut in self.cuts for i in cut}
        copies = [i for i in range(len(self.devices)) if i not in spread]
        return tuple(self._one(at, cut) for cut in self.cuts), self._one(at, copies) % self.optimizer

    def _one(self, at: list[int], dims: Iterable[int]) -> int:
        index = 0
        for i in dims:
            index = index * self.devices[i] + at[i]
        return index


@dataclass(slots=True, kw_only=True)
class _Raw:
    """A layout as it stands in a file."""

    devices: list[int] = field(default_factory=list[int])
    maps: list[list[int]] = field(default_factory=list[list[int]])
    optimizer: int = 0
    is_uneven: bool = False


Strategy = dict[int, dict[str, Layout]]
"""Of each pipeline stage the layout of each parameter."""


def read_strategies(files: Iterable[Path]) -> Strategy:
    """Read the layouts of all stages. Raises CheckpointError when a file is none, or two do not agree."""
    found: Strategy = {}
    for path in files:
        try:
            stage, layouts = _of_json(path) if path.suffix == ".json" else _of_message(path)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:300]
            raise CheckpointError("no strategy file of MindSpore, or damaged", where=str(path), why=why) from error
        for name, raw in layouts:
            prefix, hyphen, rest = name.partition("-")
            is_merged = bool(hyphen) and prefix.isascii() and prefix.isdecimal() and len(prefix) < 6
            at, name = (int(prefix), rest) if is_merged else (stage, name)
            layout = _layout(raw, f"{path}: {name[:200]}")
            if found.setdefault(at, {}).setdefault(name, layout) != layout:
                raise CheckpointError(
                    "two strategy files do not agree", where=f"{path}: {name[:200]}", why=f"both are of stage {at}",
                    fix="leave only those of the run that wrote the checkpoint",
                )  # fmt: skip
    if len({layout.n_devices for stage in found.values() for layout in stage.values()}) > 1:
        raise CheckpointError("the strategy files speak of different numbers of devices", where=_where(files))
    return found


def _layout(raw: _Raw, where: str) -> Layout:
    """Check a layout and return it. Raises CheckpointError when it cannot be true."""
    if max(len(raw.devices), len(raw.maps)) > _AT_MOST_DIMS:
        raise CheckpointError("no layout has so many dimensions", where=where)
    if not raw.devices or min(raw.devices) < 1 or math.prod(raw.devices) > _AT_MOST_DEVICES:
        raise CheckpointError("no matrix of devices", where=where, why=str(raw.devices)[:100])
    n = len(raw.devices)
    cuts: list[tuple[int, ...]] = []
    for cut in raw.maps:
        dims = [i for i in cut if i != -1]
        if any(not 0 <= i < n for i in dims):
            raise CheckpointError("a tensor is cut by no dimension of the devices", where=where, why=str(cut)[:100])
        cuts.append(tuple(n - 1 - i for i in dims))
    flat = [i for cut in cuts for i in cut]
    if len(set(flat)) != len(flat):
        raise CheckpointError("two dimensions are cut by the same devices", where=where, why=str(raw.maps)[:100])
    copies = math.prod(raw.devices) // math.prod(raw.devices[i] for i in flat)
    optimizer = copies if raw.optimizer == -1 else max(1, raw.optimizer)
    if copies % optimizer:
        why = f"{copies} devices hold a copy, the optimizer cuts it into {optimizer}"
        raise CheckpointError("the parts of a parallel optimizer cannot be placed", where=where, why=why)
    return Layout(devices=tuple(raw.devices), cuts=tuple(cuts), optimizer=optimizer, is_uneven=raw.is_uneven)


def _of_json(path: Path) -> tuple[int, list[tuple[str, _Raw]]]:
    if path.stat().st_size > _AT_MOST_BYTES:
        raise ValueError("too large for a strategy")
    content: Any = json.loads(path.read_bytes())
    items: Any = content.get("parallel_strategy_item") or {}
    stage = int(next(iter(items.values()))["stage"]) if items else 0
    found: list[tuple[str, _Raw]] = []
    for name, item in content["parallel_layout_item"].items():
        cuts = [one if isinstance(one, list) else [one] for one in item["tensor_map"]]
        numbers = [*item["dev_matrix"], *(i for cut in cuts for i in cut), item.get("opt_weight_shard_size", 0)]  # type: ignore[misc]
        if any(type(number) is not int for number in numbers):  # type: ignore[misc]
            raise ValueError(f"the layout of {name[:100]} has what is no number")
        is_uneven = bool(item.get("param_split_shape")) or bool(item.get("field"))
        found.append((
            name, _Raw(devices=item["dev_matrix"], maps=cuts, optimizer=numbers[-1], is_uneven=is_uneven)
        ))  # fmt: skip
    return stage, found


def _of_message(path: Path) -> tuple[int, list[tuple[str, _Raw]]]:
    found: list[tuple[str, _Raw]] = []
    stage: int | None = None
    with path.open("rb") as file:
        for count, entry in enumerate(wire.fields(file, 0, path.stat().st_size)):
            if count >= _AT_MOST_ITEMS:
                raise wire.WireError("too many entries")
            if entry.number == _ITEM and entry.kind == wire.BYTES and stage is None:
                stage = _stage(file, entry)
            elif entry.number == _LAYOUT and entry.kind == wire.BYTES:
                found.append(_named(file, entry))
            elif entry.number > _LAYOUT:
                raise wire.WireError(f"field {entry.number} at byte {entry.start:,} is nothing that a strategy has")
    return stage or 0, found


def _stage(file: BinaryIO, entry: wire.Field) -> int:
    for part in wire.fields(file, entry.start, entry.start + entry.size):
        if part.number == 2 and part.kind == wire.BYTES:
            for inner in wire.fields(file, part.start, part.start + part.size):
                if inner.number == 1:
                    return wire.number(inner)
    return 0


def _named(file: BinaryIO, entry: wire.Field) -> tuple[str, _Raw]:
    name, raw = "", _Raw()
    for part in wire.fields(file, entry.start, entry.start + entry.size):
        if part.number == 1:
            name = wire.text(file, part)
        elif part.number == 2 and part.kind == wire.BYTES:
            raw = _raw(file, part)
    if not name:
        raise wire.WireError(f"a layout at byte {entry.start:,} has no name")
    return name, raw


def _raw(file: BinaryIO, entry: wire.Field) -> _Raw:
    raw = _Raw()
    maps: list[list[int]] = []
    for part in wire.fields(file, entry.start, entry.start + entry.size):
        if part.number in (_DEVICES, _MAP, _SPLIT) and part.kind == wire.BYTES:
            dims = [
                number
                for inner in wire.fields(file, part.start, part.start + part.size)
                for number in wire.numbers(file, inner)
            ]
            if part.number == _DEVICES:
                raw.devices = raw.devices or dims
            elif part.number == _MAP:
                maps.append(dims)
            else:
                raw.is_uneven = raw.is_uneven or bool(dims)
        elif part.number == _FIELD:
            raw.is_uneven = raw.is_uneven or wire.number(part) > 0
        elif part.number == _OPT_SIZE:
            raw.optimizer = wire.number(part)
    # One map has an entry for each dimension; several are of one dimension each, which several devices may cut.
    raw.maps = [[one] for one in maps[0]] if len(maps) == 1 else [cut for cut in maps if cut]
    return raw


def _where(files: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in files)[:300]
