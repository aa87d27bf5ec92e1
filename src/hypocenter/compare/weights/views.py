"""Tensors made of other tensors without reading them: joined, taken apart, turned, cut, padded, cast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Box, Tensor, extent, whole

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A tensor and where its first element lies in the whole one."""

    offset: tuple[int, ...]
    tensor: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiled(Tensor):
    """A tensor that lies in patches, as shards of several ranks do; what no patch covers is zero."""

    patches: tuple[Patch, ...] = ()

    @property
    def is_turned(self) -> bool:
        """Whether one of the patches is turned."""
        return any(patch.tensor.is_turned for patch in self.patches)

    def read(self, box: Box) -> NDArray[Any]:
        """Read what each patch has of the box."""
        result = np.zeros(extent(box), elements.STORED[self.dtype])
        for patch in self.patches:
            shared = [
                (max(start, at), min(stop, at + size))
                for (start, stop), at, size in zip(box, patch.offset, patch.tensor.shape, strict=True)
            ]
            if all(start < stop for start, stop in shared):
                into = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(shared, box, strict=True))
                of = tuple((a - at, b - at) for (a, b), at in zip(shared, patch.offset, strict=True))
                result[into] = patch.tensor.read(of)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Tensor):
    """Parts one after another along a dimension, group by group: `groups` times a share of each."""

    parts: tuple[Tensor, ...] = ()
    dim: int = 0
    groups: int = 1

    def read(self, box: Box) -> NDArray[Any]:
        """Read the groups that the box touches, of each part, and cut them to size."""
        start, stop = box[self.dim]
        shares = [part.shape[self.dim] // self.groups for part in self.parts]
        a_group = sum(shares)
        if self.groups == 1:
            return self._one_group(box, shares)
        first, last = start // a_group, -(-stop // a_group)
        pieces: list[NDArray[Any]] = []
        for part, share in zip(self.parts, shares, strict=True):
            rows = np.moveaxis(part.read(_with(box, self.dim, (first * share, last * share))), self.dim, 0)
            pieces.append(rows.reshape(last - first, share, *rows.shape[1:]))
        together = np.concatenate(pieces, axis=1).reshape(-1, *pieces[0].shape[2:])
        return np.moveaxis(together[start - first * a_group : stop - first * a_group], 0, self.dim)

    def _one_group(self, box: Box, sizes: list[int]) -> NDArray[Any]:
        start, stop = box[self.dim]
        pieces: list[NDArray[Any]] = []
        at = 0
        for part, size in zip(self.parts, sizes, strict=True):
            a, b = max(start, at), min(stop, at + size)
            if a < b:
                pieces.append(part.read(_with(box, self.dim, (a - at, b - at))))
            at += size
        return np.concatenate(pieces, axis=self.dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Tensor):
    """One part of a joined tensor: the inverse of Joined. `before` and `after`: rows of a group beside its own."""

    source: Tensor = field(default_factory=lambda: Tensor(shape=(), dtype="float32"))
    dim: int = 0
    groups: int = 1
    before: int = 0
    after: int = 0

    def read(self, box: Box) -> NDArray[Any]:
        """Read the groups that the box touches and take this part out of them."""
        start, stop = box[self.dim]
        share = self.shape[self.dim] // self.groups
        if self.groups == 1:
            return self.source.read(_with(box, self.dim, (start + self.before, stop + self.before)))
        a_group = self.before + share + self.after
        first, last = start // share, -(-stop // share)
        rows = self.source.read(_with(box, self.dim, (first * a_group, last * a_group)))
        rows = np.moveaxis(rows, self.dim, 0)
        mine = rows.reshape(last - first, a_group, *rows.shape[1:])[:, self.before : self.before + share]
        flat = mine.reshape(-1, *rows.shape[1:])
        return np.moveaxis(flat[start - first * share : stop - first * share], 0, self.dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned(Tensor):
    """A view with the first two dimensions exchanged."""

    source: Tensor = field(default_factory=lambda: Tensor(shape=(), dtype="float32"))

    @property
    def is_turned(self) -> bool:
        """Whether the source is not turned: the view of it then is."""
        return not self.source.is_turned

    def read(self, box: Box) -> NDArray[Any]:
        """Read the box with its first two dimensions exchanged, and turn it."""
        return np.swapaxes(self.source.read((box[1], box[0], *box[2:])), 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaped(Tensor):
    """The same elements in the same row-major order, in another shape."""

    source: Tensor = field(default_factory=lambda: Tensor(shape=(), dtype="float32"))

    def read(self, box: Box) -> NDArray[Any]:
        """Read the rows of the source that hold the rows of the box."""
        inner = math.prod(self.shape[1:])
        start, stop = (box[0][0] * inner, box[0][1] * inner) if box else (0, 1)
        of_source = math.prod(self.source.shape[1:])
        if self.source.shape:
            first, last = start // of_source, -(-stop // of_source)
            flat = self.source.read(((first, last), *whole(self.source.shape[1:]))).reshape(-1)
            flat = flat[start - first * of_source : stop - first * of_source]
        else:
            flat = self.source.read(()).reshape(-1)
        rows = flat.reshape(extent(box)[:1] + self.shape[1:])
        return rows[(slice(None), *(slice(a, b) for a, b in box[1:]))] if box else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(Tensor):
    """The same numbers in another floating-point format."""

    source: Tensor = field(default_factory=lambda: Tensor(shape=(), dtype="float32"))

    @property
    def is_turned(self) -> bool:
        """Whether the source is turned."""
        return self.source.is_turned

    def read(self, box: Box) -> NDArray[Any]:
        """Read the box of the source and cast it."""
        return elements.cast(self.source.read(box), self.source.dtype, self.dtype)


def joined(parts: tuple[Tensor, ...], dim: int = 0, groups: int = 1) -> Tensor:
    """Join the parts to one tensor, in the first one's format where they differ."""
    first = parts[0]
    size = sum(part.shape[dim] for part in parts)
    parts = tuple(cast(part, first.dtype) for part in parts)
    return Joined(shape=_with(first.shape, dim, size), dtype=first.dtype, parts=parts, dim=dim, groups=groups)


def shares(source: Tensor, sizes: tuple[int, ...], dim: int = 0, groups: int = 1) -> list[Tensor]:
    """Return the parts of a joined tensor, in order."""
    of_group = [size // groups for size in sizes]
    return [
        Share(
            shape=_with(source.shape, dim, size), dtype=source.dtype, source=source, dim=dim, groups=groups,
            before=sum(of_group[:i]), after=sum(of_group[i + 1 :]),
        )
        for i, size in enumerate(sizes)
    ]  # fmt: skip


def turned(source: Tensor) -> Tensor:
    """Return a view with the first two dimensions exchanged."""
    if isinstance(source, Turned):
        return source.source
    return Turned(shape=(source.shape[1], source.shape[0], *source.shape[2:]), dtype=source.dtype, source=source)


def resized(source: Tensor, dim: int, size: int) -> Tensor:
    """Return a view that is cut at the end of a dimension, or filled up with zeros there."""
    if size <= source.shape[dim]:
        return Share(shape=_with(source.shape, dim, size), dtype=source.dtype, source=source, dim=dim)
    patch = Patch(offset=(0,) * len(source.shape), tensor=source)
    return Tiled(shape=_with(source.shape, dim, size), dtype=source.dtype, patches=(patch,))


def reshaped(source: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a view of the same elements in another shape."""
    return source if source.shape == shape else Reshaped(shape=shape, dtype=source.dtype, source=source)


def cast(source: Tensor, dtype: str) -> Tensor:
    """Return a view in another floating-point format; integers stay what they are."""
    if source.dtype == dtype or not (elements.is_floating(source.dtype) and elements.is_floating(dtype)):
        return source
    return Cast(shape=source.shape, dtype=dtype, source=source)


def one_of(source: Tensor, index: int) -> Tensor:
    """Return one slice of the first dimension, without that dimension: one layer of stacked tensors."""
    cut = replace(resized(source, 0, 1), before=index)  # type: ignore[call-arg]
    return Reshaped(shape=source.shape[1:], dtype=source.dtype, source=cut)


def _with(every: tuple[T, ...], dim: int, one: T) -> tuple[T, ...]:
    return (*every[:dim], one, *every[dim + 1 :])
