"""What a micro-batch came to, bit by bit: losses and gradients as digests and norms, and how two such differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hypocenter.tap.digest import digests
from hypocenter.tap.digest import to_host as numbers
from hypocenter.tap.gradients import local, norms
from hypocenter.tap.gradients import to_host as floats

_MASK = (1 << 64) - 1
_MIX = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio: Knuth, The Art of Computer Programming, section 6.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Print:
    """What identifies a tensor: a digest of its bits, None when only the norm is known, and the L2 norm in float32."""

    digest: int | None
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """All that was computed, by name: parameters' gradients, and `loss`, `loss[1]`, ... of the roots."""

    prints: Mapping[str, Print] = field(default_factory=dict)

    @property
    def digest(self) -> int:
        """One digest of all, as int64."""
        total = 0
        for name in sorted(self.prints):
            total = ((total ^ ((self.prints[name].digest or 0) & _MASK)) * _MIX + len(name)) & _MASK
        return total - (1 << 64) if total >> 63 else total


def bits_of(named: Sequence[tuple[str, torch.Tensor]]) -> Bits:
    """Return digest and norm of each tensor that has values here. It takes two transfers."""
    held = [(name, values) for name, tensor in named if (values := local(tensor)) is not None]
    with torch.no_grad():
        found, sizes = numbers(digests([t for _, t in held])), floats(norms([t for _, t in held]))
    return Bits(
        prints={
            name: Print(digest=digest, norm=norm)
            for (name, _), digest, norm in zip(held, found, sizes, strict=True)
            if digest is not None
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one computation differs from another, over what both have and is not zero in both."""

    relative: tuple[float, ...] = ()  # | ‖a‖ - ‖b‖ | / ‖a‖ of each: 0 for equal bits; inf where one is not finite
    names: tuple[str, ...] = ()  # of those with other bits, in order

    @property
    def n_equal(self) -> int:
        """How many are equal in every bit."""
        return len(self.relative) - len(self.names)

    @property
    def largest(self) -> float:
        """The largest relative difference of norms."""
        return max(self.relative, default=0.0)


SMALLEST = 2.0**-60
"""Stands for a relative difference that the norms do not show: other bits are never told as 0."""


def difference(a: Bits, b: Bits) -> Difference:
    """Return what differs between two computations of the same."""
    relative: list[float] = []
    names: list[str] = []
    for name, one in a.prints.items():
        other = b.prints.get(name)
        if other is None or one.norm == other.norm == 0.0:
            continue
        if _is_same(one, other):
            relative.append(0.0)
            continue
        names.append(name)
        is_finite = math.isfinite(one.norm) and math.isfinite(other.norm)
        size = abs(one.norm - other.norm) / max(one.norm, other.norm) if is_finite else math.inf
        relative.append(max(size, SMALLEST))
    return Difference(relative=tuple(relative), names=tuple(names))


def _is_same(one: Print, other: Print) -> bool:
    if one.digest is not None and other.digest is not None:
        return one.digest == other.digest
    if not (math.isfinite(one.norm) and math.isfinite(other.norm)):
        return math.isfinite(one.norm) == math.isfinite(other.norm)
    return abs(one.norm - other.norm) <= NORM_ONLY * max(one.norm, other.norm)


NORM_ONLY = 1e-5  # relative: norms that went through a recording, as squares
