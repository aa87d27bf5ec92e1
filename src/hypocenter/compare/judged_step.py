"""One step of two runs, compared and judged: what blame is searched in. And the worst row of each pair over many."""

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
from hypocenter.compare.verdict import CANNOT_TELL, DIFFERS, VERDICTS, WITHIN, noise_up_to

_RANKS = {DIFFERS: 3.0, CANNOT_TELL: 2.0, WITHIN: 1.0}
_APART = 1e6  # between ranks; errors in units of noise are taken to their logarithm, far below it
_REALS = ("relative", "low", "high", "cosine", "scale")


@dataclass(frozen=True, kw_only=True)
class JudgedStep:
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
        """The phase of each row."""
        return np.array([spot.phase for spot in self.spots], np.str_)

    @cached_property
    def site(self) -> npt.NDArray[np.str_]:
        """The site of each row, in the baseline's names."""
        return np.array([spot.site for spot in self.spots], np.str_)

    @cached_property
    def port(self) -> npt.NDArray[np.str_]:
        """The port of each row."""
        return np.array([spot.port for spot in self.spots], np.str_)

    @cached_property
    def call(self) -> npt.NDArray[np.int64]:
        """The number of the call of each row."""
        return np.array([spot.call for spot in self.spots], np.int64)

    @cached_property
    def differs(self) -> Flags:
        """For each row whether its verdict is that both sides differ."""
        return self.verdicts == DIFFERS

    @cached_property
    def beyond(self) -> Flags:
        """For each row whether it is, surely or perhaps, beyond its noise; not rows that cannot be compared."""
        found = (self.verdicts == DIFFERS) | (self.verdicts == CANNOT_TELL)
        found &= self.distances.depth != NONE
        return found if self.negligible is None else found & ~self.negligible

    @cached_property
    def is_open(self) -> Flags:
        """For each row whether nobody can tell; not for rare samples of a noise that was measured."""
        return (self.verdicts == CANNOT_TELL) & ~(self.beyond & (self.floors.source != ASSUMED))

    @cached_property
    def excess(self) -> Reals:
        """The error of each row in units of what is still noise there; 0 for equal rows."""
        with np.errstate(all="ignore"):
            up_to = noise_up_to(self.floors, self.budget)
            found = np.where(self.distances.is_equal, 0.0, self.distances.relative / up_to)
        return np.nan_to_num(found, nan=0.0, posinf=np.inf)

    def row(self, at: int) -> RowComparison:
        """Return one row as a RowComparison."""
        return self.rows([at])[0]

    def rows(self, at: Sequence[int]) -> list[RowComparison]:
        """Return the rows `at` as RowComparisons."""
        a = self.aligned
        columns = (a.pair, a.baseline.microbatch, a.baseline.order, self.verdicts, self.differs)
        dtypes = zip(a.baseline.dtype[at], a.candidate.dtype[at], strict=True)
        rows = zip(
            *(column[at].tolist() for column in columns), self.distances.rows(at), self.floors.rows(at), dtypes,
            strict=True,
        )  # fmt: skip
        return [
            RowComparison(
                pair=self.pairs[pair], step=a.step, microbatch=microbatch, order=order, distance=distance, floor=floor,
                verdict=VERDICTS[verdict], since=a.step if differs else None, dtypes=(str(mine), str(other)),
            )
            for pair, microbatch, order, verdict, differs, distance, floor, (mine, other) in rows
        ]  # fmt: skip


class Worst:
    """Keeps, for each pair, the row with the worst verdict and among these the largest error in units of noise.

    Args:
        pairs: of the matching.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        n = len(pairs)
        self.pairs = pairs
        self._score = np.full(n, -np.inf)
        self._ints = {name: np.zeros(n, np.int64) for name in ("step", "microbatch", "order", "verdict", "depth",
                                                               "source", "n_samples")}  # fmt: skip
        self._since = np.full(n, -1)  # the first step in which the pair differs
        self._reals = {name: np.zeros(n) for name in (*_REALS, "floor")}
        self._dtypes = np.full((n, 2), "", np.object_)

    def take(self, judged: JudgedStep) -> None:
        """Take the rows of a step into account."""
        pair = judged.aligned.pair
        differs = pair[judged.differs]
        self._since[differs[self._since[differs] < 0]] = judged.aligned.step
        rank = np.zeros(len(judged))
        for code, value in _RANKS.items():
            rank[judged.verdicts == code] = value
        with np.errstate(divide="ignore"):
            score = rank * _APART + np.clip(np.log2(judged.excess), -1000.0, 1000.0)
        better = np.flatnonzero(score > self._score[pair])
        better = better[np.argsort(score[better], kind="stable")]
        at = pair[better]  # of several rows of a pair the last one written is the worst
        rows, distances = judged.aligned.baseline, judged.distances
        self._score[at] = score[better]
        self._ints["step"][at] = judged.aligned.step
        self._ints["microbatch"][at] = rows.microbatch[better]
        self._ints["order"][at] = rows.order[better]
        self._ints["verdict"][at] = judged.verdicts[better]
        self._ints["depth"][at] = distances.depth[better]
        self._ints["source"][at] = judged.floors.source[better]
        self._ints["n_samples"][at] = judged.floors.n_samples[better]
        for name in _REALS:
            self._reals[name][at] = getattr(distances, name)[better]
        self._reals["floor"][at] = judged.floors.relative[better]
        self._dtypes[at, 0], self._dtypes[at, 1] = rows.dtype[better], judged.aligned.candidate.dtype[better]

    def rows(self, shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[RowComparison]:
        """Return the worst row of each pair that was compared, in the order of the pairs."""
        at = np.flatnonzero(np.isfinite(self._score))
        reals = {name: column[at] for name, column in self._reals.items()}
        ints = {name: column[at] for name, column in self._ints.items()}
        floors = Floors(relative=reals.pop("floor"), source=ints["source"].astype(np.int8), n_samples=ints["n_samples"])
        distances = Distances(depth=ints["depth"].astype(np.int8), **reals, is_equal=np.zeros(len(at), np.bool_))
        every = list(range(len(at)))
        return [
            RowComparison(
                pair=self.pairs[number], step=int(ints["step"][i]), microbatch=int(ints["microbatch"][i]),
                order=int(ints["order"][i]), distance=distance, floor=floor, verdict=VERDICTS[ints["verdict"][i]],
                since=int(self._since[number]) if self._since[number] >= 0 else None,
                dtypes=(str(self._dtypes[number, 0]), str(self._dtypes[number, 1])), shapes=shapes[number],
            )
            for i, (number, distance, floor) in enumerate(
                zip(at.tolist(), distances.rows(every), floors.rows(every), strict=True)
            )
        ]  # fmt: skip
