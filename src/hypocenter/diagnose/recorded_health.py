"""What a measure of health may ask of a recording: looks, norms of gradients, outputs of modules, what is trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hypocenter.detect.columns import Bools, Columns, Floats, Ints, mask_of
from hypocenter.detect.health_rows import HEALTH
from hypocenter.detect.local_rows import LOCAL, NORM
from hypocenter.nouns import Reading
from hypocenter.record.reader import RecordedRun
from hypocenter.record.schema import readings_from


class Recorded:
    """A recording; it is read when something is first asked for."""

    def __init__(self, recording: RecordedRun) -> None:
        self._recording = recording

    @cached_property
    def _ranks(self) -> list[RankHealth]:
        return [rank for part in self._recording.over_parts(look_at_health) for rank in part]

    @cached_property
    def n_steps(self) -> int:
        """Steps that were recorded."""
        return len(np.unique(np.concatenate([rank.steps for rank in self._ranks])))

    @property
    def norms(self) -> Sequence[tuple[Ints, Floats]]:
        """Of each rank: steps of one micro-batch, and the norms of their gradients."""
        return [rank.norms for rank in self._ranks]

    @property
    def has_looks(self) -> bool:
        """Whether it was recorded with --health, and a look was made."""
        return bool(self._looks)

    @property
    def has_outputs(self) -> bool:
        """Whether it was recorded at level modules."""
        return bool(self.outputs)

    @cached_property
    def _looks(self) -> Mapping[str, Sequence[Series]]:
        """By port."""
        return self._by_port("look")

    def looks(self, port: str) -> Sequence[Series]:
        """Looks at one thing, by place in the order of the model."""
        return self._looks.get(port, ())

    @cached_property
    def outputs(self) -> Sequence[Series]:
        """What modules gave, the largest of each step, in the order of the model."""
        return [series for of_port in self._by_port("output").values() for series in of_port]

    @cached_property
    def gradients(self) -> Sequence[Series]:
        """Norms of parameters' gradients, as the root of `sumsq`."""
        return self._of("gradient")

    @cached_property
    def local_gradients(self) -> Sequence[Series]:
        """Norms of each rank's own part, before the ranks' are averaged."""
        return self._of("local")

    @cached_property
    def trained(self) -> frozenset[str]:
        """Parameters that an optimizer holds and that ask for a gradient, at its first update."""
        facts = self._recording.facts()
        if facts is None:
            return frozenset()
        held = {name for one in facts.optimizers for group in one.groups for name in group.parameters}
        return frozenset(
            name
            for module in facts.modules
            for key, tensor in module.parameters.items()
            if tensor.trained and (name := f"{module.path}.{key}" if module.path else key) in held
        )

    def _of(self, kind: Kind) -> list[Series]:
        """Of all ranks, those that began first first."""
        found = [series for rank in self._ranks for series in rank.series.get(kind, ())]
        return sorted(found, key=lambda series: (series.steps[0], series.began))

    def _by_port(self, kind: Kind) -> Mapping[str, Sequence[Series]]:
        found: defaultdict[str, list[Series]] = defaultdict(list)
        for series in self._of(kind):
            found[series.place.port].append(series)
        return found


__all__ = ["Place", "Recorded", "Series"]


# What a rank recorded of its health, by columns: one series for each place, of the largest value of each step.
#
# A walk over the rank's file notes a few numbers of each row; whole rows are kept of looks, and of each place the
# latest.

Kind = Literal["look", "output", "gradient", "local"]
_NOTED = ("step", "order", "call", "absmax", "sumsq", "n", "n_nan", "microbatch")


class Place(NamedTuple):
    """Of what values are: the n-th call there, on one rank."""

    rank: int
    site: str
    port: str
    call: int


@dataclass(frozen=True, kw_only=True)
class Series:
    """What was recorded at one place, once a step, in order of steps.

    Attributes:
        steps: of its values.
        began: order of its first row within its step.
    """

    place: Place
    steps: Ints
    began: int
    _columns: Mapping[str, NDArray[Any]]  # of one element where all steps have the same
    _kept: pa.Table  # rows of the rank that were kept whole
    _at: Ints  # those of the place: the latest; of looks all

    def column(self, name: str) -> NDArray[Any]:
        """A number of each step: sumsq, n, n_nan, absmax or microbatch, as hypocenter.nouns.Summary and Reading say."""
        return np.broadcast_to(self._columns[name], self.steps.shape)

    @cached_property
    def last(self) -> Reading:
        """The latest."""
        return next(readings_from(self._kept.slice(int(self._at[-1]), 1)))

    @cached_property
    def looks(self) -> Sequence[tuple[float, ...]]:
        """Numbers of each look, as hypocenter.detect.health_rows has them."""
        return [tuple(numbers or ()) for numbers in self._kept["sketch"].take(pa.array(self._at)).to_pylist()]

    @property
    def numbers(self) -> tuple[float, ...]:
        """Of the latest look."""
        return self.looks[-1]

    def points(self, index: int) -> list[tuple[int, float]]:
        """(step, number) of each look."""
        return [(step, numbers[index]) for step, numbers in zip(self.steps.tolist(), self.looks, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHealth:
    """What came of one rank.

    Attributes:
        series: of each kind, those that began first first.
        steps: of its records.
        norms: (steps, norms) of the gradients of one micro-batch.
    """

    series: Mapping[Kind, Sequence[Series]]
    steps: Ints
    norms: tuple[Ints, Floats]


def look_at_health(recorded: RecordedRun, ranks: Sequence[int]) -> list[RankHealth]:
    """What some ranks recorded."""
    return [_of_rank(recorded, rank) for rank in ranks]


def _of_rank(recorded: RecordedRun, rank: int) -> RankHealth:
    walk = _Walk(rank)
    kept = recorded.walk(rank, walk.take)
    records = recorded.record_table(rank)
    has_norm = records["grad_norm"].is_valid().to_numpy() & (records["n_microbatches"].to_numpy() == 1)
    steps = records["step"].to_numpy()
    return RankHealth(
        series={kind: list(walk.series(kind, kept)) for kind in get_args(Kind)} if kept is not None else {},
        steps=np.unique(steps),
        norms=(steps[has_norm], records["grad_norm"].to_numpy()[has_norm]),
    )


@dataclass(slots=True)
class _Noted:
    """Numbers of the rows of one kind."""

    at: list[Ints] = field(default_factory=list[Ints])  # number of the row among all
    place: list[Ints] = field(default_factory=list[Ints])  # site and port
    numbers: defaultdict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))


class _Walk:
    """Sees the batches of a rank in the order they were written."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._n = 0
        self._places: dict[tuple[str, str], int] = {}
        self._noted: dict[Kind, _Noted] = {kind: _Noted() for kind in get_args(Kind)}
        self._kept: list[Ints] = [np.zeros(0, np.int64)]

    def take(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """The next batch; which rows are to be kept whole."""
        columns = Columns(batch)
        keep = np.zeros(columns.n, np.bool_)
        for kind, rows in _rows_by_kind(columns).items():
            at = np.flatnonzero(rows)
            if not len(at):
                continue
            noted, place = self._noted[kind], self._places_of(columns)[columns.kind[at]]
            noted.at.append(at + self._n)
            noted.place.append(place)
            for name in _NOTED:
                noted.numbers[name].append(columns.numbers(name)[at])
            keep[at if kind == "look" else at[_is_latest(place, columns.steps[at])]] = True
        self._kept.append(np.flatnonzero(keep) + self._n)
        self._n += columns.n
        return mask_of(keep)

    def _places_of(self, columns: Columns) -> Ints:
        """By kind of row; the same number in each batch."""
        (site, sites), (port, ports) = columns.kinds.words("site"), columns.kinds.words("port")
        words = [(sites[s], ports[p]) for s, p in zip(site.tolist(), port.tolist(), strict=True)]
        return np.array([self._places.setdefault(each, len(self._places)) for each in words], np.int64)

    def series(self, kind: Kind, kept: pa.Table) -> Iterator[Series]:
        """Of one kind, those that began first first.

        Args:
            kind: which.
            kept: the rows that were kept whole.
        """
        noted = self._noted[kind]
        if not noted.at:
            return
        numbers = {name: np.concatenate(parts) for name, parts in noted.numbers.items()}
        at, place = np.concatenate(noted.at), np.concatenate(noted.place)
        words, rows_kept = list(self._places), np.concatenate(self._kept)
        step, order, call = numbers["step"], numbers["order"], numbers["call"]
        rows = np.lexsort((order, step, call, place))
        starts = _starts(place[rows], call[rows])
        first = rows[starts]  # of each place
        chosen = _chosen(rows, _starts(place[rows], call[rows], step[rows]), numbers["absmax"], is_last=kind == "look")
        chosen_starts = _starts(place[chosen], call[chosen])
        stops = np.append(chosen_starts[1:], len(chosen))
        for number in np.lexsort((at[first], order[first], step[first])).tolist():
            mine = chosen[chosen_starts[number] : stops[number]]
            whole = np.searchsorted(rows_kept, at[mine if kind == "look" else mine[-1:]])
            yield Series(
                place=Place(self._rank, *words[place[mine[0]]], int(call[mine[0]])),
                steps=step[mine],
                began=int(order[first[number]]),
                _columns={name: _shortened(numbers[name][mine]) for name in _NOTED[3:]},
                _kept=kept,
                _at=whole,
            )


def _rows_by_kind(columns: Columns) -> dict[Kind, Bools]:
    kinds = columns.kinds
    is_replay, is_recompute = (columns.numbers(name).astype(np.bool_) for name in ("replay", "recompute"))
    op = columns.column("op")
    at = {word: number for number, word in enumerate(op.dictionary.to_pylist())}.get(HEALTH, -1)
    is_look = op.indices.to_numpy(zero_copy_only=False) == at if at >= 0 else np.zeros(columns.n, np.bool_)
    is_grad = kinds.equal("phase", "grad") & kinds.equal("port", "grad")
    is_output = kinds.equal("phase", "forward") & kinds.begins("port", "out")
    return {
        "look": is_look,
        "output": columns.rows(is_output) & ~is_replay & ~is_recompute,
        "gradient": columns.rows(is_grad) & ~is_replay,
        "local": columns.rows(kinds.equal("port", LOCAL)) & (columns.numbers("call") == NORM),
    }


def _is_latest(place: Ints, steps: Ints) -> Bools:
    """Rows of the last step of their place."""
    last = np.full(int(place.max()) + 1, -1, np.int64)
    np.maximum.at(last, place, steps)
    return steps == last[place]


def _starts(*keys: Ints) -> Ints:
    """Where a row has other keys than the one before."""
    is_new = np.ones(len(keys[0]), np.bool_)
    is_new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(is_new)


def _chosen(rows: Ints, starts: Ints, absmax: Floats, *, is_last: bool) -> Ints:
    """Of each group of rows the last, or the first with the largest magnitude."""
    stops = np.append(starts[1:], len(rows))
    if is_last or len(starts) == len(rows):
        return rows[stops - 1]
    size = np.where(np.isnan(absmax[rows]), -np.inf, absmax[rows])
    size[starts[np.isnan(absmax[rows[starts]])]] = np.inf  # no number is larger
    is_largest = np.flatnonzero(size == np.repeat(np.maximum.reduceat(size, starts), stops - starts))
    return rows[is_largest[np.searchsorted(is_largest, starts)]]


def _shortened(values: NDArray[Any]) -> NDArray[Any]:
    """One element where all are the same: a series of a healthy run has as many zeros as steps."""
    return values[:1] if (values == values[0]).all() else values
