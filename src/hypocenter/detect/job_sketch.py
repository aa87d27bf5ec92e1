"""What ranks that should be alike tell of themselves, in a few numbers a step: whether they are.

A sketch of one rank is made of its rows, batch by batch; sketches of ranks merge into one of the job (`JobSketch`: in
any order), in which a group of ranks is one of them and the answer whether the others
were like it. Where all are, the rules over replicas, streams, data and step records (`asked="unlike"`) have nothing to
find, for sure; where not, they look at the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hypocenter.axes import HOLD_COPIES
from hypocenter.detect.columns import Bools, Columns, Floats, Ints, by_step, mixed, word_hash
from hypocenter.detect.local_rows import LOCAL, RECENT, REDUCED
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
_TOLERANCES = {CLIP: _SPREAD, "loss": _SPREAD}
_LEARNED = 3  # steps that tell which ranks share a gradient: as gradients_split.LEARNED, or fewer
_STEPS_OF_ROWS, _RANKS_OF_ROWS = 1024, 64  # as shared_rows looks at
_FEW_SHARED = 16  # rows of a group that several ranks were given: shared_rows says nothing of fewer


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
    ends: set[int] = field(default_factory=set[int])  # digests of parameters there, that may be tied
    norms: dict[int, list[int]] = field(
        default_factory=dict[int, list[int]]
    )  # site -> n, a number of the first, of all
    is_odd: bool = False  # something that numbers do not tell about

    def add(self, columns: Columns) -> None:
        """Take in the next batch of its rows."""
        if self.is_odd or _is_odd(columns):
            self.is_odd = True
            return
        if self.own_law is not None:
            self.own_law.add(columns)
        kinds = columns.kinds
        self._add_replicas(_with_digests(columns.of(kinds.begins("port", PARAM))))
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
        first = columns.rows(kinds.equal("port", PARAM)) & (call == 0)
        if first.any():
            self.first_step = int(columns.steps[first].min()) if self.first_step is None else self.first_step
            self.ends |= set(columns.digests()[first & (columns.steps == self.first_step)].tolist())

    def _add_norms(self, columns: Columns) -> None:
        """What two ranks with the same norms have the same of; which step has which norm is a part of it."""
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
    kinds = columns.kinds
    local = columns.of(kinds.equal("port", LOCAL, REDUCED))
    return bool(
        columns.is_nonfinite.any()
        or (local.numbers("call") == RECENT).any()
        or columns.rows(kinds.equal("site", LABEL_WEIGHT)).any()
        or _repeats_activations(columns)
    )


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
        self.is_odd = False
        self._alike: dict[tuple[str, tuple[int, ...], str], _Group] = {}
        self._near: dict[tuple[str, tuple[int, ...], str], _Range] = {}
        self._rows: dict[tuple[int, ...], list[Ints]] = {}
        self._ends: dict[int, set[int]] = {}
        self._norms: list[Ints] = []  # rows of site, a number of the first norms, of all

    def add(self, sketch: RankSketch, records: StepColumns) -> None:
        """Take in one rank."""
        is_bad = bool(records.is_bad.any() or (records.column("skipped") > 0).any())
        self.is_odd |= sketch.is_odd or is_bad or (sketch.own_law is not None and not sketch.own_law.is_quiet)
        if self.is_odd:
            return
        groups = self._groups_of(sketch.rank)
        for axis, ranks in groups.items():
            for channel, parts in sketch.series.items():
                if _concerns(channel, axis):
                    steps, values = (np.concatenate(each) for each in zip(*parts, strict=True))
                    self._put((axis, ranks, channel), _group(*by_step(steps, values)))
            self._add_numbers(axis, ranks, sketch, records)
        if "dp" in groups and sketch.shares and sketch.rank in groups["dp"][:_RANKS_OF_ROWS]:
            self._rows.setdefault(groups["dp"], []).append(_once_a_step(sketch.shares))
        self._ends[sketch.rank] = sketch.ends if "pp" in groups else set()
        if sketch.norms:
            rows = [(site, _wrapped(first), _wrapped(whole)) for site, (_, first, whole) in sketch.norms.items()]
            self._norms.append(np.array(rows, np.int64))

    def _groups_of(self, rank: int) -> dict[str, tuple[int, ...]]:
        if self._everybody:
            return {"dp": self._ranks}
        place = self._places.get(rank)
        found = place.groups.items() if place is not None else ()
        return {axis: tuple(sorted(group)) for axis, group in found if len(group) > 1}

    def _add_numbers(self, axis: str, ranks: tuple[int, ...], sketch: RankSketch, records: StepColumns) -> None:
        if axis not in HOLD_COPIES:
            return
        for name in ("lr", "loss_scale", *(["loss"] if axis == "tp" else [])):
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

    def _put(self, key: tuple[str, tuple[int, ...], str], group: _Group) -> None:
        known = self._alike.get(key)
        self._alike[key] = group if known is None else known.merge(group)

    def _put_range(self, key: tuple[str, tuple[int, ...], str], found: _Range) -> None:
        known = self._near.get(key)
        self._near[key] = found if known is None else known.merge(found)

    def merge(self, other: JobSketch) -> None:
        """Take in the ranks of another one, of the same job."""
        self.is_odd |= other.is_odd
        for key, group in other._alike.items():
            self._put(key, group)
        for key, found in other._near.items():
            self._put_range(key, found)
        for ranks, rows in other._rows.items():
            self._rows.setdefault(ranks, []).extend(rows)
        self._ends |= other._ends
        self._norms += other._norms

    @property
    def is_alike(self) -> bool:
        """Whether what should be alike is, for sure."""
        return not (
            self.is_odd
            or any(not _is_alike(key, group) for key, group in self._alike.items())
            or any(
                not found.is_within(_SPREAD if key[2] in (CLIP, "loss") else _HARMLESS)
                for key, found in self._near.items()
            )
            or any(_n_shared(rows) >= _FEW_SHARED for rows in self._rows.values())
            or self._may_be_tied()
            or self._norms_part()
        )

    def _may_be_tied(self) -> bool:
        stages = {tuple(place.groups.get("pp", ())) for place in self._places.values()}
        return any(len(s) > 1 and self._ends.get(s[0], set()) & self._ends.get(s[-1], set()) for s in stages)

    def _norms_part(self) -> bool:
        """Whether two ranks with the same norm of a gradient at the first steps have another one later."""
        if not self._norms:
            return False
        site, first, whole = np.concatenate(self._norms).T
        order = np.lexsort((whole, first, site))
        site, first, whole = site[order], first[order], whole[order]
        same = (site[1:] == site[:-1]) & (first[1:] == first[:-1])
        return bool((same & (whole[1:] != whole[:-1])).any())


def _concerns(channel: str, axis: str) -> bool:
    """Whether a channel is compared over an axis."""
    kind = channel.split()[0]
    if kind in HOLD_COPIES:
        return kind == axis
    if kind in ("batch", "own"):
        return axis == "dp"
    return axis in (("tp", "cp") if kind == "rng" else ("tp",))


def _is_alike(key: tuple[str, tuple[int, ...], str], group: _Group) -> bool:
    channel = key[2]
    several = group.n_each > 1
    is_alike = group.n_alike == group.n_each
    if channel in ("batch", "own"):  # all of a group at one step have the same data, or gradients of their own experts
        return not (several & is_alike).any()
    if channel.startswith("rng"):  # equal once, and later not
        equal = np.flatnonzero(several & is_alike)
        return not len(equal) or bool(is_alike[int(equal[0]) :].all())
    return bool(is_alike[several].all())


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
