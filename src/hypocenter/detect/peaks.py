"""The largest magnitudes of each site over a long history, in bounded memory: what forecasts are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypocenter.formats import FORMATS
from hypocenter.nouns import Reading

MOST_POINTS = 256  # per site; when they are full, neighbours are joined and each later point covers twice the steps
NEAR_BITS = 8.0  # headroom from which on a site is followed: 256 in float16
NEAR_LIMIT: dict[str, float] = {name: form.max * 2.0**-NEAR_BITS for name, form in FORMATS.items()}

Key = tuple[str, str, str, str, int]  # phase, site, port, op, source line: at level `ops` a site has many


@dataclass(slots=True, kw_only=True)
class _Series:
    stride: int = 1  # steps that one point covers
    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, step: int, log2: float) -> None:
        """Add a point, of which only the highest of each stride is kept."""
        if self.points and self.points[-1][0] // self.stride == step // self.stride:
            self.points[-1] = max(self.points[-1], (step, log2), key=lambda p: p[1])
            return
        self.points.append((step, log2))
        if len(self.points) > MOST_POINTS:
            self.stride *= 2
            merged, self.points = self.points, []
            for each in merged:
                self.add(*each)


@dataclass(slots=True, kw_only=True)
class Peaks:
    """The peaks (step, log2 |max|) of sites whose readings were near their format's limit. The history writes them."""

    is_told: bool = False  # a forecast was made from them: one cause is one finding
    _series: dict[Key, _Series] = field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        """Follow a reading, if it is near its limit."""
        if is_near_limit(reading):
            series = self._series.setdefault(key_of(reading), _Series())
            series.add(reading.step, math.log2(reading.summary.absmax))

    def of(self, reading: Reading) -> list[tuple[int, float]]:
        """Return the earlier points of this reading's site."""
        series = self._series.get(key_of(reading))
        return list(series.points) if series is not None else []


def key_of(reading: Reading) -> Key:
    """Return the key by which readings of different steps are comparable."""
    line = reading.source.line if reading.source is not None else 0
    return reading.phase, reading.site, reading.port, reading.op, line


def is_near_limit(reading: Reading) -> bool:
    """Return whether the largest finite magnitude is within NEAR_BITS of the format's largest number.

    Exactly the largest number itself is what masks are made of (`torch.finfo(dtype).min`), and does not count.
    """
    limit = NEAR_LIMIT.get(reading.dtype)
    if limit is None or reading.replay or reading.recompute:
        return False
    return limit < reading.summary.absmax < FORMATS[reading.dtype].max
