"""What ranks that should be alike tell of themselves, in a few numbers a step: whether they are.

A sketch of one rank is made of its rows, batch by batch; sketches of ranks merge into one of the job (`JobSketch`: in
any order), in which a group of ranks is one of them and the answer whether the others were like it. Of ranks in groups
that are alike the rules over replicas, streams, data and step records (`asked="unlike"`) find nothing, for sure; they
look at the rows of the others (`suspects`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from hypocenter.axes import HOLD_COPIES
from hypocenter.detect.columns import Bools, Columns, Floats, Ints, by_step, mixed, word_hash
from hypocenter.detect.local_rows import LOCAL, NORM, RECENT
from hypocenter.detect.microbatch_rows import LABEL_WEIGHT
from hypocenter.detect.own_laws import OwnLaw
from hypocenter.detect.replica_rows import (
    BATCH_LOSS,
    BATCH_PORT,
    BATCH_PREFIX,
    CLIP,
    FIELD_PORT,
    GRAD,
    PARAM,
    RNG_PORT,
    RNG_PREFIX,
    ROW_PLACES,
)
from hypocenter.detect.step_columns import StepColumns

if TYPE_CHECKING:
    from hypocenter.nouns import Place

_HARMLESS = 1e-6  # relative: stream_track.HARMLESS
_SPREAD = 1e-4  # relative: of losses stream_track.SAME_LOSS, of coefficients of clipping less than replica_track.SPREAD
_ALL = "all"  # in the place of an axis
_BAD = (LOCAL, "norms")  # channels of what is not finite
_LEARNED = 3  # steps that tell which ranks share a gradient: as gradients_split.LEARNED, or fewer
_STEPS_OF_ROWS, _RANKS_OF_ROWS = 1024, 64  # as shared_rows looks at
_FEW_SHARED = 16  # rows of a group that several ranks were given: shared_rows says nothing of fewer


_Ranks = tuple[int, ...]
_Key = tuple[str, _Ranks, str]  # axis, group, channel


@dataclass(slots=True)
class RankSketch:
    """One rank. `series`: by channel, (steps in rising order, a number of each)."""

    rank: int
    own_law: OwnLaw | None = None  # of a job whose ranks are too many to be told apart in a sum
    series: dict[str, list[tuple[Ints, Ints]]] = field(default_factory=dict[str, list[tuple[Ints, Ints]]])
    shares: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])  # step, digest of rows of batches
    values: list[tuple[Ints, Floats]] = field(default_factory=list[tuple[Ints, Floats]])  # coefficients of clipping
    first_row_step: int | None = None
    first_step: int | None = None  # with digests of parameters
    ends: dict[int, list[int]] = field(
        default_factory=dict[int, list[int]]
    )  # matrix, by its site's hash -> its digest there, and a number of what became of it and of its gradients
    norms: dict[int, list[int]] = field(
        default_factory=dict[int, list[int]]
    )  # site -> n, a number of the first, of all
    weighs_labels: bool = False
    is_odd: bool = False  # something that numbers do not tell about

    def add(self, columns: Columns) -> None:
        """Take in the next batch of its rows."""
        if self.is_odd or _is_odd(columns):
            self.is_odd = True
            return
        if self.own_law is not None:
            self.own_law.add(columns)
        kinds = columns.kinds
        self.weighs_labels |= bool(columns.rows(kinds.equal("site", LABEL_WEIGHT)).any())
        replicas = columns.of(kinds.begins("port", PARAM))
        self._add_replicas(replicas.only(replicas.has("digest") & (replicas.numbers("n_nan") == 0)))
        local = columns.of(kinds.equal("port", LOCAL))
        is_bad = local.is_nonfinite | ~np.isfinite(local.numbers("sumsq"))
        self._add_bad(LOCAL, local, is_bad & (local.numbers("call") == NORM))
        self._add_norms(columns.of(kinds.equal("phase", "grad") & kinds.equal("port", "grad")))
        clips = columns.of(kinds.equal("site", CLIP) & kinds.equal("port", "value"))
        self.values.append((clips.steps, clips.numbers("sum").astype(np.float64)))
        data = columns.of(kinds.equal("phase", "data"))
        self._add_data(_with_digests(data.only(data.numbers("microbatch") == 0)))

    def _add(self, channel: str, columns: Columns, kinds: Bools, values: Ints) -> None:
        rows = columns.rows(kinds)
        if rows.any():
            self.series.setdefault(channel, []).append(by_step(columns.steps[rows], values[rows]))

    def _add_replicas(self, columns: Columns) -> None:
        kinds, call = columns.kinds, columns.numbers("call").astype(np.int64)
        values = mixed(mixed(columns.digests() ^ columns.hashes("site")) ^ columns.hashes("port") ^ call)
        for axis in HOLD_COPIES:
            is_said = kinds.having("placement", lambda text, a=axis: f"{a}=R" in text.split())
            is_silent = kinds.having("placement", lambda text, a=axis: f"{a}=" not in text and "=V" not in text)
            self._add(f"{axis} said", columns, is_said, values)
            self._add(f"{axis} silent", columns, is_silent, values)
        of_expert = kinds.having("placement", lambda text: "dp=V" in text.split()) & kinds.equal("port", GRAD)
        self._add("own", columns, of_expert, values)
        self._add_ends(columns.of(kinds.equal("port", PARAM, GRAD)))

    def _add_ends(self, columns: Columns) -> None:
        """What tells whether a matrix stays equal to one that began so on another stage, whatever its name."""
        call = columns.numbers("call").astype(np.int64)
        is_before = columns.rows(columns.kinds.equal("port", PARAM)) & (call == 0)
        if self.first_step is None and is_before.any():
            self.first_step = int(columns.steps[is_before].min())
        codes, names = columns.words("site")
        starts = np.flatnonzero(is_before & (columns.steps == self.first_step))
        if len(starts):
            sizes = columns.column("shape").value_lengths().to_numpy(zero_copy_only=False)
            for at in starts[sizes[starts] == 2].tolist():
                self.ends.setdefault(word_hash(names[codes[at]]), [int(columns.digests()[at]), 0])
        values = mixed(mixed(columns.digests() ^ mixed(columns.steps)) ^ columns.hashes("port") ^ call)
        totals = np.zeros(len(names), np.int64)
        np.add.at(totals, codes, values)
        for code in np.flatnonzero(totals).tolist():
            if (known := self.ends.get(word_hash(names[code]))) is not None:
                known[1] += int(totals[code])

    def _add_bad(self, channel: str, columns: Columns, is_bad: Bools) -> None:
        """Which gradients were not finite; nothing of steps at which all were."""
        if is_bad.any():
            values = by_step(columns.steps[is_bad], mixed(columns.hashes("site")[is_bad]))
            self.series.setdefault(channel, []).append(values)

    def _add_norms(self, columns: Columns) -> None:
        """What two ranks with the same norms have the same of; which step has which norm is a part of it."""
        self._add_bad("norms", columns, columns.is_nonfinite)
        columns = columns.only(~columns.is_nonfinite)
        codes, names = columns.words("site")
        norms = columns.numbers("sumsq").astype(np.float64).view(np.int64)
        order = np.argsort(codes.astype(np.min_scalar_type(len(names))), kind="stable")  # of few bits: in linear time
        values, counts = mixed(norms ^ mixed(columns.steps))[order], np.bincount(codes, minlength=len(names))
        there = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[there]
        totals = np.add.reduceat(values, starts) if len(there) else starts
        for code, start, total in zip(there.tolist(), starts.tolist(), totals.tolist(), strict=True):
            known = self.norms.setdefault(word_hash(names[code]), [0, 0, 0])
            n = int(counts[code])
            known[1] += sum(values[start : start + min(n, max(0, _LEARNED - known[0]))].tolist())
            known[0] += n
            known[2] += total

    def _add_data(self, columns: Columns) -> None:
        kinds, values = columns.kinds, mixed(columns.digests() ^ columns.hashes("site"))
        is_rng = kinds.equal("port", RNG_PORT) & kinds.begins("site", RNG_PREFIX)
        index, names = kinds.words("site")
        for code in np.unique(index[is_rng]).tolist():
            self._add(f"rng {names[code]}", columns, is_rng & (index == code), values)
        is_batch = kinds.equal("port", BATCH_PORT) & kinds.begins("site", BATCH_PREFIX)
        self._add("batch", columns, is_batch, values)
        is_given = is_batch & ~kinds.begins("site", BATCH_LOSS)
        self._add("given", columns, is_given & kinds.equal("dtype", "int64", "int32"), values)
        given = columns.of(is_given)
        if not given.n:
            return
        self.first_row_step = int(given.steps[0]) if self.first_row_step is None else self.first_row_step
        given = given.only(given.steps <= self.first_row_step + _STEPS_OF_ROWS)
        lists = given.column("row_digests")
        lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        if lengths.any():
            self.shares.append((np.repeat(given.steps, lengths), lists.flatten().to_numpy() // ROW_PLACES))


def _with_digests(columns: Columns) -> Columns:
    return columns.only(columns.has("digest"))


def _is_odd(columns: Columns) -> bool:
    """Whether numbers would not tell of it."""
    local = columns.of(columns.kinds.equal("port", LOCAL))
    return bool((local.numbers("call") == RECENT).any()) or _repeats_activations(columns)


def _repeats_activations(columns: Columns) -> bool:
    """Whether a model is called with the same floating-point numbers in two micro-batches of a step."""
    kinds = columns.kinds
    of_field = kinds.equal("port", FIELD_PORT) & kinds.begins("site", BATCH_PREFIX) & ~kinds.begins("site", BATCH_LOSS)
    given = _with_digests(columns.of(of_field))
    values = mixed(given.digests() ^ given.hashes("site") ^ mixed(given.steps))
    return len(np.unique(values)) < len(values)


@dataclass(slots=True)
class _Group:
    """Ranks that should be alike in one channel: the first, and where the others were not."""

    steps: Ints
    values: Ints
    n: int = 1
    n_each: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # how many had each step
    n_alike: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # how many had the value of the first

    def merge(self, other: _Group) -> _Group:
        """Both."""
        if np.array_equal(self.steps, other.steps):  # as mostly
            n_alike = self.n_alike + np.where(self.values == other.values, other.n_alike, 0)
            return _Group(self.steps, self.values, self.n + other.n, self.n_each + other.n_each, n_alike)
        steps = np.union1d(self.steps, other.steps)
        mine, theirs = np.searchsorted(steps, self.steps), np.searchsorted(steps, other.steps)
        values, n_each, n_alike = (np.zeros(len(steps), np.int64) for _ in range(3))
        values[theirs], n_each[theirs], n_alike[theirs] = other.values, other.n_each, other.n_alike
        is_same = np.zeros(len(steps), np.bool_)
        is_same[mine] = (values[mine] == self.values) | (n_each[mine] == 0)
        here = np.zeros(len(steps), np.bool_)
        here[mine] = True
        n_alike[here & ~is_same] = 0
        values[mine] = self.values
        n_each[mine] += self.n_each
        n_alike[mine] += self.n_alike
        return _Group(steps, values, self.n + other.n, n_each, n_alike)


def _group(steps: Ints, values: Ints) -> _Group:
    ones = np.ones(len(steps), np.int64)
    return _Group(steps, values, 1, ones, ones.copy())


@dataclass(slots=True)
class _Range:
    """A number that should be the same, nearly."""

    steps: Ints
    low: Floats
    high: Floats

    def merge(self, other: _Range) -> _Range:
        """Both."""
        if np.array_equal(self.steps, other.steps):
            return _Range(self.steps, np.minimum(self.low, other.low), np.maximum(self.high, other.high))
        steps = np.union1d(self.steps, other.steps)
        low, high = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
        for each in (self, other):
            at = np.searchsorted(steps, each.steps)
            low[at], high[at] = np.minimum(low[at], each.low), np.maximum(high[at], each.high)
        return _Range(steps, low, high)

    def is_within(self, tolerance: float) -> bool:
        """At all steps."""
        with np.errstate(invalid="ignore"):
            far = self.high - self.low > tolerance * np.maximum(np.abs(self.low), np.abs(self.high))
        return not (far | np.isnan(self.low)).any()

    @property
    def finite(self) -> _Range:
        """Of the steps at which all were finite."""
        is_finite = np.isfinite(self.low) & np.isfinite(self.high)
        return _Range(self.steps[is_finite], self.low[is_finite], self.high[is_finite])


class JobSketch:
    """All ranks that were added.

    Args:
        places: where each rank stands.
        ranks: of the whole recording.
    """

    def __init__(self, places: Mapping[int, Place], ranks: Sequence[int]) -> None:
        axes = {axis for place in places.values() for axis, group in place.groups.items() if len(group) > 1}
        self._everybody = not axes & set(HOLD_COPIES)
        self._places, self._ranks = places, tuple(ranks)
        self.breaks_own_law = False
        self._odd: set[int] = set()  # ranks
        self._weighs_labels = False
        self._alike: dict[_Key, _Group] = {}
        self._near: dict[_Key, _Range] = {}
        self._rows: dict[_Ranks, list[Ints]] = {}
        self._ends: dict[int, dict[int, int]] = {}  # by rank: RankSketch.ends, by digest
        self._norms: list[Ints] = []  # rows of site, a number of the first norms, of all, rank

    def add(self, sketch: RankSketch, records: StepColumns) -> None:
        """Take in one rank."""
        self.breaks_own_law |= sketch.own_law is not None and not sketch.own_law.is_quiet
        self._weighs_labels |= sketch.weighs_labels
        if sketch.is_odd:
            self._odd.add(sketch.rank)
            return
        groups = self._groups_of(sketch.rank)
        for channel, parts in sketch.series.items():
            steps, values = (np.concatenate(each) for each in zip(*parts, strict=True))
            found = _group(*by_step(steps, values))
            for axis, ranks in groups.items():
                if _concerns(channel, axis):
                    self._put((axis, ranks, channel), found)
            if channel == LOCAL and "dp" not in groups:
                self._put((_ALL, self._ranks, channel), found)
        for axis, ranks in groups.items():
            self._add_numbers(axis, ranks, sketch, records)
        if "dp" in groups and sketch.shares and sketch.rank in groups["dp"][:_RANKS_OF_ROWS]:
            self._rows.setdefault(groups["dp"], []).append(_once_a_step(sketch.shares))
        if "pp" in groups or (self._everybody and sketch.rank in (self._ranks[0], self._ranks[-1])):
            ends = self._ends[sketch.rank] = dict[int, int]()
            for digest, total in sketch.ends.values():
                ends[digest] = _wrapped(ends.get(digest, 0) + total)
        if sketch.norms:
            norms = sketch.norms.items()
            rows = [(site, _wrapped(first), _wrapped(whole), sketch.rank) for site, (_, first, whole) in norms]
            self._norms.append(np.array(rows, np.int64))

    def _groups_of(self, rank: int) -> dict[str, _Ranks]:
        if self._everybody:
            return {"dp": self._ranks}
        place = self._places.get(rank)
        found = place.groups.items() if place is not None else ()
        return {axis: tuple(sorted(group)) for axis, group in found if len(group) > 1}

    def _add_numbers(self, axis: str, ranks: _Ranks, sketch: RankSketch, records: StepColumns) -> None:
        if axis not in HOLD_COPIES:
            return
        for name in ("lr", "loss_scale", "skipped", *(["loss"] if axis == "tp" else [])):
            has = records.has(name)
            values = records.column(name)[has]
            if has.any():
                self._put_range((axis, ranks, name), _Range(records.steps[has], values, values))
        steps, values = (
            (np.concatenate(each) for each in zip(*sketch.values, strict=True)) if sketch.values else ((), ())
        )
        if len(steps):
            order = np.argsort(steps, kind="stable")
            self._put_range((axis, ranks, CLIP), _Range(steps[order], values[order], values[order]))

    def _put(self, key: _Key, group: _Group) -> None:
        known = self._alike.get(key)
        self._alike[key] = group if known is None else known.merge(group)

    def _put_range(self, key: _Key, found: _Range) -> None:
        known = self._near.get(key)
        self._near[key] = found if known is None else known.merge(found)

    def merge(self, other: JobSketch) -> None:
        """Take in the ranks of another one, of the same job."""
        self.breaks_own_law |= other.breaks_own_law
        self._weighs_labels |= other._weighs_labels
        self._odd |= other._odd
        for key, group in other._alike.items():
            self._put(key, group)
        for key, found in other._near.items():
            self._put_range(key, found)
        for ranks, rows in other._rows.items():
            self._rows.setdefault(ranks, []).extend(rows)
        self._ends |= other._ends
        self._norms += other._norms

    @property
    def suspects(self) -> _Ranks:
        """The ranks of groups that are not as alike as they should be, in rising order; of all others it is sure."""
        found = {rank for ranks in self._unlike() for rank in ranks} & set(self._ranks)
        if not found or self._everybody:
            return self._ranks if found else ()
        groups = [self._groups_of(rank) for rank in sorted(found)]
        of_copies = [group for each in groups for axis, group in each.items() if axis in HOLD_COPIES]
        if of_copies and not any(found.issuperset(group) for group in of_copies):
            found |= set(of_copies[0])  # or they would look like ranks of which nobody knows what they share
        return tuple(rank for rank in self._ranks if rank in found)

    def _unlike(self) -> Iterator[Iterable[int]]:
        for rank in self._odd:
            yield (rank, *(other for group in self._groups_of(rank).values() for other in group))
        ranks = frozenset(self._ranks)
        yield from (key[1] for key, group in self._alike.items() if not _is_alike(key[2], group, ranks & set(key[1])))
        yield from (key[1] for key, found in self._near.items() if not _is_near(key[2], found))
        yield from (ranks for ranks, rows in self._rows.items() if _n_shared(rows) >= _FEW_SHARED)
        yield from islice(self._untied(), 1)  # one of many is told of
        yield self._parted()
        if self._weighs_labels:
            yield self._of_one_sequence()

    def _untied(self) -> Iterator[_Ranks]:
        """Stages whose ends hold a matrix that began with the same values and went on otherwise."""
        stages: set[_Ranks] = {tuple(sorted(place.groups.get("pp", ()))) for place in self._places.values()}
        if self._everybody:
            stages.add(self._ranks)
        for ranks in sorted(stages):
            first, last = (self._ends.get(rank, {}) for rank in (ranks[0], ranks[-1])) if len(ranks) > 1 else ({}, {})
            if any(last.get(digest, total) != total for digest, total in first.items()):
                yield ranks

    def _parted(self) -> list[int]:
        """Ranks with the same norm of a gradient at the first steps, of which some have another one later."""
        if not self._norms:
            return []
        site, first, whole, rank = np.concatenate(self._norms).T
        order = np.lexsort((whole, first, site))
        site, first, whole, rank = site[order], first[order], whole[order], rank[order]
        is_new = np.concatenate([[True], (site[1:] != site[:-1]) | (first[1:] != first[:-1])])
        starts = np.flatnonzero(is_new)
        differs = np.minimum.reduceat(whole, starts) != np.maximum.reduceat(whole, starts)
        return rank[differs[np.cumsum(is_new) - 1]].tolist()

    def _of_one_sequence(self) -> Iterable[int]:
        """The ranks that `reduced_too_large` looks at: of all that have the weights of the first."""
        pairs = sorted({tuple(sorted(place.groups.get("cp", ()))) for place in self._places.values()} - {()})
        if not pairs or pairs[0][0] not in self._places:
            return ()
        here = self._places[pairs[0][0]].coords
        alike = (r for r, place in self._places.items() if (place.coords.tp, place.coords.pp) == (here.tp, here.pp))
        return (*pairs[0], *alike)


def _concerns(channel: str, axis: str) -> bool:
    """Whether a channel is compared over an axis."""
    kind = channel.split()[0]
    if kind in HOLD_COPIES:
        return kind == axis
    if kind in ("batch", "own", LOCAL):
        return axis == "dp"
    if kind == "norms":
        return axis in HOLD_COPIES
    return axis in (("tp", "cp") if kind == "rng" else ("tp",))


def _is_alike(channel: str, group: _Group, ranks: Collection[int]) -> bool:
    """Whether a group is as it should be, of these ranks that were recorded."""
    several = group.n_each > 1
    is_alike = group.n_alike == group.n_each
    if channel in _BAD:
        return bool((group.n_alike == len(ranks)).all())
    if channel in ("batch", "own"):  # all of a group at one step have the same data, or gradients of their own experts
        return not (several & is_alike).any()
    if channel.startswith("rng"):  # equal once, and later not
        equal = np.flatnonzero(several & is_alike)
        return not len(equal) or bool(is_alike[int(equal[0]) :].all())
    return bool(is_alike[several].all())


def _is_near(name: str, found: _Range) -> bool:
    if name == "loss":
        return found.finite.is_within(_SPREAD)
    return found.is_within(_SPREAD if name == CLIP else _HARMLESS)


def _n_shared(rows: Sequence[Ints]) -> int:
    """Rows that more than one rank was given."""
    values = np.sort(np.concatenate(rows), kind="stable")  # of what is in order mostly: half the time
    return int((values[1:] == values[:-1]).sum())


def _once_a_step(parts: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Digests, each once of each step, in rising order.

    Args:
        parts: (steps, digests); 0 is none.
    """
    steps, digests = (np.concatenate(each) for each in zip(*parts, strict=True))
    found = np.sort(digests)
    if (found[1:] == found[:-1]).any():
        order = np.lexsort((steps, digests))
        steps, found = steps[order], digests[order]
        found = found[np.concatenate([[True], (steps[1:] != steps[:-1]) | (found[1:] != found[:-1])])]
    return found[found != 0]


def _wrapped(number: int) -> int:
    """Modulo 2**64, signed."""
    return (number + 2**63) % 2**64 - 2**63
