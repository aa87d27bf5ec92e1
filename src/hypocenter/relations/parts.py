"""Which parts of a tensor belong to which sample and place, and how far the parts that must stay have moved.

Nothing tells how a tensor is laid out. Each layout that its shape allows is tried: a part has moved only where it has
in all of them. A tensor whose shape allows none is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_MOST_PAIRED = 512  # samples that are compared with each other
NEAR = 4  # places: a convolution over the edge of a sample reaches no farther


class Parts(Protocol):
    """Which parts of an output must stay."""

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return how far the part that moved most has moved, relative to the usual size of one; None: cannot tell."""
        ...

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return the same for the usual layout only: samples, then places; None if the output has another one."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Parts are samples.

    Attributes:
        stays: of each sample, whether it must stay: [n], bool.
    """

    stays: Tensor

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the smallest change over all layouts in which a dimension, or part of one, may be that of samples."""
        n, pair = len(self.stays), _squares(before, now)
        found: list[float] = []
        for dim, size in enumerate(before.shape):
            if n == 0 or size % n or size == 0:
                continue
            moved, usual = _over(pair, (dim,))
            each = torch.arange(size, device="cpu")
            found.append(_worst(moved, usual, self.stays[each // (size // n)]))
            if size > n:
                found.append(_worst(moved, usual, self.stays[each % n]))
            for other in range(dim + 1, before.dim()):  # of samples with samples
                if size == n == before.shape[other]:
                    pairs = self.stays.unsqueeze(1) & self.stays
                    found.append(_worst(*_over(pair, (dim, other)), pairs))
        return min(found) if found else None

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of a tensor of three or more dimensions that has samples first; None for others."""
        if before.dim() < 3 or before.shape[0] != len(self.stays) or len(self.stays) in before.shape[1:]:
            return None
        return _worst(*_over(_squares(before, now), (0,)), self.stays)


@dataclass(frozen=True, slots=True)
class RowsAnywhere:
    """As many samples as must stay, whichever they are: a model may give its samples in another order.

    Attributes:
        stays: as for Rows.
    """

    stays: Tensor

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of a tensor with samples first, whose samples may have changed places; None for others."""
        n = len(self.stays)
        if before.dim() == 0 or before.shape[0] != n:
            return None
        moved, usual = _over(_squares(before, now), (0,))
        return _worst(moved.sort().values, usual, torch.arange(n, device="cpu") < self.stays.sum())

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: no layout is assumed."""
        return None


@dataclass(frozen=True, slots=True)
class SameRows:
    """All samples that were there, in whatever order.

    Attributes:
        n: samples.
    """

    n: int

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return how far the sample that is farthest from all samples before is from the nearest of them."""
        if before.dim() < 2 or before.shape[0] != self.n or self.n > _MOST_PAIRED:
            return None
        old, new = (each.detach().reshape(self.n, -1).to(torch.float64) for each in (before, now))
        nearest = torch.cdist(new, old).min(dim=1).values.max()
        usual = old.square().sum(1).mean().sqrt()
        return float(nearest / usual) if usual > 0 else float(nearest > 0)

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: no layout is assumed."""
        return None


@dataclass(frozen=True, slots=True)
class Places:
    """Parts are places of sequences.

    Attributes:
        stays: whether it must stay: [n samples, length], bool.
    """

    stays: Tensor

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the smallest change over all layouts with samples and places in two dimensions, or both in one."""
        found = [_worst(*each) for each in self._layouts(before, now)]
        return min(found) if found else None

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of a tensor [samples, places, features]; None for others."""
        if before.dim() != 3 or before.shape[:2] != self.stays.shape or len(set(before.shape)) < 3:
            return None
        return _worst(*_over(_squares(before, now), (0, 1)), self.stays)

    def is_near(self, before: Tensor, now: Tensor, tolerance: float) -> bool:
        """Return whether places next to those that may change have moved, and all places farther away have not."""
        n, length = self.stays.shape
        for moved, usual, stays in self._layouts(before, now):
            if stays.dim() != 2 or stays.shape[1] != length or len(stays) % n:
                continue
            far = stays & ~_widened(~stays)
            if bool(far.any()) and _worst(moved, usual, far) <= tolerance:
                return True
        return False

    def _layouts(self, before: Tensor, now: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        (n, length), shape, pair = self.stays.shape, before.shape, _squares(before, now)
        for dim, size in enumerate(shape):
            if dim == 0 and size == n * length > 1:
                moved, usual = _over(pair, (dim,))
                yield moved, usual, self.stays.reshape(-1)
                yield moved, usual, self.stays.t().reshape(-1)
            if size != length or (dim > 2 and shape[dim - 1] != length):  # only keys that others attend to
                continue
            if n == 1:
                moved, usual = _over(pair, (dim,))
                yield moved, usual, self.stays[0]
                continue
            for other, of_samples in enumerate(shape):
                if other == dim or of_samples % n or of_samples == 0:
                    continue
                moved, usual = _over(pair, (other, dim))
                stays = self.stays.repeat_interleave(of_samples // n, dim=0)
                yield moved, usual, stays
                if of_samples > n:
                    yield moved, usual, self.stays.repeat(of_samples // n, 1)


@dataclass(frozen=True, slots=True)
class AskedPlaces:
    """Parts are the places that a loss compares with targets: they lie as these do, or as cross entropy wants them.

    Attributes:
        stays: whether it must stay: [n samples, length], bool.
    """

    stays: Tensor

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of the place that moved most; None for a layout that no loss takes."""
        n, length = self.stays.shape
        shape, pair = tuple(before.shape), _squares(before, now)
        if shape[:1] == (n * length,):
            return _worst(*_over(pair, (0,)), self.stays.reshape(-1))
        for dims in ((0, 1), (1, 0), (0, 2)):
            if len(shape) > max(dims) and (shape[dims[0]], shape[dims[1]]) == (n, length):
                return _worst(*_over(pair, dims), self.stays)
        return None

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: there is only one layout."""
        return None


@dataclass(frozen=True, slots=True)
class PlacesOrRows(Places):
    """Parts are places of sequences; of outputs that have none, whole samples.

    Attributes:
        lengths: of other sequences, all whose places must stay.
    """

    lengths: frozenset[int] = frozenset()

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change by places if there are any, else of outputs with one value or vector for each sample."""
        found = Places.moved(self, before, now)
        n = len(self.stays)
        is_of_others = before.dim() == 3 and before.shape[1] in self.lengths
        if found is not None or before.shape[:1] != (n,) or (before.dim() > 2 and not is_of_others):
            return found
        return Rows(torch.ones(n, dtype=torch.bool, device="cpu")).moved(before, now)


@dataclass(frozen=True, slots=True)
class Whole:
    """The part is the whole output."""

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the relative change in L2."""
        return _worst(*_over(_squares(before, now), ()), torch.ones((), dtype=torch.bool, device="cpu"))

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: there is only one layout."""
        return None


@dataclass(frozen=True, slots=True)
class WholeOf:
    """The whole of an output that has samples first, and in no other dimension.

    Attributes:
        n: samples.
    """

    n: int

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of the sample that moved most; None if the samples are not the first dimension alone."""
        if before.dim() < 2 or before.shape[0] != self.n or self.n in before.shape[1:]:
            return None
        return _worst(*_over(_squares(before, now), (0,)), torch.ones(self.n, dtype=torch.bool, device="cpu"))

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: there is only one layout."""
        return None


@dataclass(frozen=True, slots=True)
class EachRow:
    """Judge by the sample that moved least: a change that all of them show, and not a router undecided about one."""

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of the sample that moved least; None for tensors of fewer than two dimensions."""
        if before.dim() < 2:
            return None
        moved, usual = _over(_squares(before, now), (0,))
        scale = usual.mean()
        return float((moved.min() / scale).sqrt()) if scale > 0 else 0.0

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: there is only one layout."""
        return None


@dataclass(frozen=True, slots=True)
class LeastRow:
    """Judge by the sample that moved least, of those with places that must stay: a change that all of them show.

    Attributes:
        stays: whether it must stay: [n samples, length], bool.
    """

    stays: Tensor

    def moved(self, before: Tensor, now: Tensor) -> float | None:
        """Return the change of the sample that moved least; None for tensors without samples, places and features."""
        if before.dim() != 3 or before.shape[:2] != self.stays.shape:
            return None
        moved, usual = ((of * self.stays).sum(1) for of in _over(_squares(before, now), (0, 1)))
        counts = self.stays.any(1)
        return float((moved[counts] / usual[counts].clamp(min=1e-300)).min().sqrt()) if bool(counts.any()) else None

    def moved_first(self, before: Tensor, now: Tensor) -> float | None:
        """Return None: there is only one layout."""
        return None


def _widened(mask: Tensor) -> Tensor:
    """Return the mask with NEAR more places set on both sides."""
    wide = torch.nn.functional.max_pool1d(mask.float().unsqueeze(1), 2 * NEAR + 1, stride=1, padding=NEAR)
    return wide.squeeze(1) > 0


Squares = tuple[Tensor, Tensor]
"""Of what changed, and of what is there."""


def _squares(before: Tensor, now: Tensor) -> Squares:
    """Return the squares of the change, and of the larger of both values, in float64."""
    before, now = before.detach(), now.detach()
    old, new = before.to(torch.float64), now.to(torch.float64)
    change = new - old
    if not bool(torch.isfinite(old.sum() + new.sum())):
        is_same = (before == now) | (old.isnan() & new.isnan())
        is_other = old.isfinite() != new.isfinite()
        old, new = (torch.nan_to_num(each, posinf=0.0, neginf=0.0) for each in (old, new))
        # one finite, the other not: as large as anything
        change = torch.where(is_same, 0.0, torch.where(is_other, 1.0 + old.abs() + new.abs(), new - old))
    return change.square(), torch.maximum(old.square(), new.square())


def _over(pair: Squares, dims: tuple[int, ...]) -> Squares:
    """Sum the squares for each index of these dimensions; the sums are on the host."""
    moved, usual = pair
    others = tuple(d for d in range(moved.dim()) if d not in dims)
    if others:
        moved, usual = moved.sum(others), usual.sum(others)
    if len(dims) == 2 and dims[0] > dims[1]:
        moved, usual = moved.t(), usual.t()
    return moved.cpu(), usual.cpu()


def _worst(moved: Tensor, usual: Tensor, stays: Tensor) -> float:
    """Return the largest change of a part that must stay, relative to the root mean square of all parts."""
    if not bool(stays.any()):
        return 0.0
    scale = usual.mean()
    worst = moved[stays].max()
    if worst == 0:
        return 0.0
    return float((worst / scale).sqrt()) if scale > 0 else 1.0
