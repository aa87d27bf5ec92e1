"""One step of two runs, compared and judged: what blame is searched in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import Pair, RowComparison, Spot
from hypocenter.compare.distances.columns import NONE, Distances
from hypocenter.compare.noise import ASSUMED, Floors
from hypocenter.compare.rows import Flags, Reals
from hypocenter.compare.verdict import CANNOT_TELL, DIFFERS, noise_up_to, word


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Rows of a step in the order in which a difference travels, with distances, floors and verdicts."""

    pairs: Sequence[Pair]
    aligned: Aligned
    distances: Distances
    floors: Floors
    verdicts: npt.NDArray[np.int8]
    budget: float
    n: int  # rows with noise up to this step: among so many the worst was looked for
    negligible: Flags | None = None  # rows of parameters whose gradients are rounding: they say nothing
    modules: Mapping[int, str] = field(default_factory=dict[int, str])  # classes of pairs' modules

    def __len__(self) -> int:
        return len(self.verdicts)

    @cached_property
    def spots(self) -> list[Spot]:
        """The baseline's spot of each row."""
        return [self.pairs[pair].baseline[0] for pair in self.aligned.pair.tolist()]

    @cached_property
    def phase(self) -> npt.NDArray[np.str_]:
        """Phase of each row."""
        return np.array([spot.phase for spot in self.spots], np.str_)

    @cached_property
    def site(self) -> npt.NDArray[np.str_]:
        """Site of each row, in the baseline's names."""
        return np.array([spot.site for spot in self.spots], np.str_)

    @cached_property
    def port(self) -> npt.NDArray[np.str_]:
        """Port of each row."""
        return np.array([spot.port for spot in self.spots], np.str_)

    @cached_property
    def call(self) -> npt.NDArray[np.int64]:
        """Call of each row."""
        return np.array([spot.call for spot in self.spots], np.int64)

    @cached_property
    def differs(self) -> Flags:
        """Which rows differ."""
        return self.verdicts == DIFFERS

    @cached_property
    def beyond(self) -> Flags:
        """Rows beyond their noise, surely or perhaps; not those that cannot be compared or say nothing."""
        found = (self.verdicts == DIFFERS) | (self.verdicts == CANNOT_TELL)
        found &= self.distances.depth != NONE
        return found if self.negligible is None else found & ~self.negligible

    @cached_property
    def is_open(self) -> Flags:
        """Rows of which nobody can tell, and that are no rare samples of a measured noise either."""
        return (self.verdicts == CANNOT_TELL) & ~(self.beyond & (self.floors.source != ASSUMED))

    @cached_property
    def excess(self) -> Reals:
        """Error of each row in units of what is still noise there; 0 of equal rows."""
        with np.errstate(all="ignore"):
            up_to = noise_up_to(self.floors, self.budget)
            found = np.where(self.distances.is_equal, 0.0, self.distances.relative / up_to)
        return np.nan_to_num(found, nan=0.0, posinf=np.inf)

    def row(self, at: int) -> RowComparison:
        """One row as a noun."""
        a = self.aligned
        return RowComparison(
            pair=self.pairs[int(a.pair[at])], step=a.step, microbatch=int(a.baseline.microbatch[at]),
            order=int(a.baseline.order[at]), distance=self.distances.row(at), floor=self.floors.row(at),
            verdict=word(int(self.verdicts[at])), since=a.step if self.differs[at] else None,
            dtypes=(str(a.baseline.dtype[at]), str(a.candidate.dtype[at])),
        )  # fmt: skip
