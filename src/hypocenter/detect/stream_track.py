"""Random states, batches, rates and skips over ranks, step by step: gathered from the panels of a job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypocenter.detect.local_rows import LOCAL
from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_columns import compare
from hypocenter.detect.replica_rows import BATCH_LOSS, BATCH_PORT, BATCH_PREFIX, PARAM, RNG_PORT, RNG_PREFIX
from hypocenter.detect.shared_rows import SharedRows
from hypocenter.nouns import StepRecord

if TYPE_CHECKING:
    import pyarrow as pa

ALL = ""  # in the place of an axis: all ranks
HARMLESS = 1e-6  # relative: learning rates computed in another order
SAME_LOSS = 1e-4  # relative: losses of tensor-parallel ranks, which are as a rule equal to the bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Desync:
    """A random state that was equal over a group of ranks, and no longer is."""

    stream: str
    axis: str
    ranks: tuple[int, ...]
    odd: tuple[int, ...]  # ranks that differ from the majority; () when there is none
    since: int  # last recorded step at which it was equal
    step: int  # first at which it was not


@dataclass(frozen=True, slots=True, kw_only=True)
class SameData:
    """A batch that all data-parallel ranks of a group were given."""

    step: int
    ranks: tuple[int, ...]
    digests: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherData:
    """Whole numbers (token ids) that are not the same on all tensor-parallel ranks of a group."""

    step: int
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    argument: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """What a step record says that is not the same on all ranks of a group."""

    what: str  # lr, loss_scale, skipped
    axis: str  # or ALL
    step: int
    values: Mapping[int, float]  # by rank


@dataclass(slots=True)
class LossesApart:
    """Losses of ranks of one group that are not the same."""

    since: int | None  # last step at which they were; None: at none
    values: Mapping[int, float]  # by rank, at the first of the steps
    steps: list[int]


@dataclass(slots=True)
class StreamTrack:
    """What is known so far of random states, batches and step records over ranks."""

    last_fed: int | None = None
    was_equal: dict[tuple[str, str, tuple[int, ...]], int] = field(
        default_factory=dict[tuple[str, str, tuple[int, ...]], int]
    )  # (axis, stream, group) -> last step
    desyncs: dict[tuple[str, str, tuple[int, ...]], Desync] = field(
        default_factory=dict[tuple[str, str, tuple[int, ...]], Desync]
    )
    device_streams: set[str] = field(default_factory=set[str])  # of accelerators
    same: list[SameData] = field(default_factory=list[SameData])
    n_batches: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])  # group -> steps seen
    drawn: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])  # groups given the same, and other data
    beside: dict[tuple[tuple[int, ...], str], list[int | None]] = field(
        default_factory=dict[tuple[tuple[int, ...], str], list[int | None]]
    )  # (group, argument) -> at each step with data of each rank's own its digest; None: it was each rank's own too
    other: list[OtherData] = field(default_factory=list[OtherData])
    shared_rows: SharedRows = field(default_factory=SharedRows)
    n_tp_batches: int = 0
    has_other_inputs: bool = False  # tensor-parallel ranks, or other labels: each may compute its part of the loss
    loss_was_equal: dict[tuple[str, tuple[int, ...]], int] = field(
        default_factory=dict[tuple[str, tuple[int, ...]], int]
    )  # (axis, group) -> last step
    losses_apart: dict[tuple[str, tuple[int, ...]], LossesApart] = field(
        default_factory=dict[tuple[str, tuple[int, ...]], LossesApart]
    )
    uneven: dict[tuple[str, str], Uneven] = field(default_factory=dict[tuple[str, str], Uneven])

    def is_used(self, stream: str) -> bool:
        """Return whether dropout may draw from a stream: of the CPU only when there is none of an accelerator."""
        return stream not in _OF_LOADERS and not (stream == _OF_CPU and self.device_streams)


_OF_CPU, _OF_LOADERS = "rng.cpu", ("rng.python", "rng.numpy")


def track(panel: Panel) -> StreamTrack:
    """Return what is known with this panel; each is read once, whichever rule asks first."""
    known: StreamTrack = panel.history.notes["streams"].setdefault("track", StreamTrack())
    if known.last_fed != panel.step:
        known.last_fed = panel.step
        states = _note_random_states(known, panel)
        _note_batches(known, panel, states)
        known.shared_rows.add(panel, known.drawn)
        _note_records(known, panel)
    return known


def _note_random_states(known: StreamTrack, panel: Panel) -> pa.Table:
    """Return the rows of this step that tell them."""
    rows = _data(panel, RNG_PORT, RNG_PREFIX)
    streams: set[str] = set(rows["site"].unique().to_pylist())
    known.device_streams |= {s for s in streams - {_OF_CPU, *_OF_LOADERS} if not s.startswith("rng.megatron.")}
    for axis in ("tp", "cp") if rows.num_rows else ():
        groups = panel.groups(axis)
        compared = compare(rows, groups)
        for entry in range(len(compared.site)):
            stream = compared.sites[int(compared.site[entry])]
            ranks = groups[int(compared.group[entry])]
            key = (axis, stream, ranks)
            if not compared.differs[entry]:
                known.was_equal[key] = panel.step
            elif key in known.was_equal and key not in known.desyncs:
                digests = {m.rank: m.digest for m in compared.members(entry)}
                known.desyncs[key] = Desync(
                    stream=stream, axis=axis, ranks=ranks, odd=odd_ones(digests), since=known.was_equal[key],
                    step=panel.step,
                )  # fmt: skip
    return rows


def _note_batches(known: StreamTrack, panel: Panel, states: pa.Table) -> None:
    rows = _data(panel, BATCH_PORT, BATCH_PREFIX)
    if not rows.num_rows:
        return
    by_rank: dict[int, dict[str, tuple[int, str, tuple[int, ...]]]] = {}
    columns = [rows[name].to_pylist() for name in ("rank", "site", "digest", "dtype", "shape")]
    for rank, site, digest, dtype, shape in zip(*columns, strict=True):
        by_rank.setdefault(rank, {})[site] = (digest, dtype, tuple(shape))
    groups, are_alike = panel.groups("dp"), True
    if not groups:
        groups, are_alike = _all_that_average(panel)
    for ranks in groups:
        batches = [by_rank.get(rank) for rank in ranks]
        if all(batches):
            known.n_batches[ranks] = known.n_batches.get(ranks, 0) + 1
            _note_what_is_beside(known, ranks, [batch for batch in batches if batch], states)
            if not are_alike or any(batch != batches[0] for batch in batches):
                continue
            if _is_given_more(panel, ranks, states):
                known.drawn.add(ranks)
                continue
            digests = tuple(value[0] for value in (batches[0] or {}).values())
            known.same.append(SameData(step=panel.step, ranks=ranks, digests=digests))
    for ranks in panel.groups("tp"):
        _note_other_data(known, panel.step, ranks, by_rank)


def _note_what_is_beside(
    known: StreamTrack, ranks: tuple[int, ...], batches: Sequence[Mapping[str, tuple[int, str, tuple[int, ...]]]],
    states: pa.Table,
) -> None:  # fmt: skip
    """Note what ranks are given alike beside data of their own, while the generators that they draw from are alike."""
    if all(batch == batches[0] for batch in batches) or not states.num_rows:
        return
    compared = compare(states, [ranks])
    used = [i for i in range(len(compared.site)) if known.is_used(compared.sites[int(compared.site[i])])]
    if not used or any(compared.differs[i] for i in used):
        return
    for argument, given in batches[0].items():
        if math.prod(given[2]) > 1:
            is_alike = all(batch.get(argument) == given for batch in batches)
            known.beside.setdefault((ranks, argument), []).append(given[0] if is_alike else None)


def _is_given_more(panel: Panel, ranks: tuple[int, ...], states: pa.Table) -> bool:
    """Return whether ranks with equal weights, batches and random states come to other losses: of what nobody saw.

    A generator is called with noise that the same seed makes everywhere, and its critic with each rank's own data.
    """
    told: dict[int, list[float]] = {rank: [] for rank in ranks}
    table = panel.where(phase="loss", site="loss", port="value")  # of each update: with several optimizers of each
    for rank, loss in zip(table["rank"].to_pylist(), table["sum"].to_pylist(), strict=True):
        told.get(rank, []).append(loss)
    of_updates = zip(*told.values(), strict=False)
    if not any(
        _is_uneven(dict(enumerate(losses)), SAME_LOSS) for losses in of_updates if all(map(math.isfinite, losses))
    ):
        return False
    are_drawn = compare(states, [ranks]) if states.num_rows else None
    return are_drawn is not None and bool(len(are_drawn.site)) and not are_drawn.differs.any()


def _all_that_average(panel: Panel) -> tuple[list[tuple[int, ...]], bool]:
    """Return all ranks as one group if they hold copies only and reduce by hand, and nothing tells their layout.

    And whether the gradients that they had made themselves are the same: if not, each may take a part of the batch.
    """
    import pyarrow.compute as pc

    if any(place.groups for place in panel.places.values()) or len(panel.ranks) < 2:
        return [], False
    tables = [panel.where(port=port) for port in (PARAM, LOCAL)]
    values, made = (compare(table.filter(pc.is_valid(table["digest"])), [panel.ranks]) for table in tables)
    are_copies = bool(len(values.site)) and not values.differs.any() and {*values.sites} == {*made.sites}
    is_whole = all((each.sizes == len(panel.ranks)).all() for each in (values, made))
    return ([panel.ranks] if are_copies and is_whole else []), not made.differs.any()


def _note_other_data(
    known: StreamTrack, step: int, ranks: Sequence[int],
    by_rank: Mapping[int, Mapping[str, tuple[int, str, tuple[int, ...]]]],
) -> None:  # fmt: skip
    given = [by_rank.get(rank) for rank in ranks]
    batches = [batch for batch in given if batch]
    if len(batches) < len(ranks) or any(batch.keys() != batches[0].keys() for batch in batches):
        known.has_other_inputs = True
        return
    known.n_tp_batches += 1
    for argument, (_, dtype, shape) in batches[0].items():
        alike = all(batch[argument][1:] == (dtype, shape) for batch in batches)
        digests = {rank: batch[argument][0] for rank, batch in zip(ranks, batches, strict=True)}
        known.has_other_inputs |= not alike or len(set(digests.values())) > 1
        if argument.startswith(BATCH_LOSS):
            continue  # code of the user's may have cut labels to a rank's part of the vocabulary
        if alike and dtype in ("int64", "int32") and len(set(digests.values())) > 1:
            known.other.append(
                OtherData(step=step, ranks=tuple(ranks), odd=odd_ones(digests), argument=argument)
            )  # fmt: skip


_RECORDED: dict[str, Callable[[StepRecord], float | None]] = {
    "lr": lambda record: record.lr,
    "loss_scale": lambda record: record.loss_scale,
    "skipped": lambda record: float(record.skipped),
}


def _note_records(known: StreamTrack, panel: Panel) -> None:
    for axis in ("dp", "tp", "cp", ALL):
        for ranks in panel.groups(axis) if axis != ALL else [panel.ranks]:
            records = {rank: panel.records[rank] for rank in ranks if rank in panel.records}
            if axis in ("tp", "cp"):
                _note_losses(known, panel.step, (axis, ranks), {rank: r.loss for rank, r in records.items()})
            for what, read in _RECORDED.items():
                found = {rank: value for rank, record in records.items() if (value := read(record)) is not None}
                if (what, axis) not in known.uneven and len(found) > 1 and _is_uneven(found):
                    known.uneven[what, axis] = Uneven(what=what, axis=axis, step=panel.step, values=found)


def _note_losses(
    known: StreamTrack, step: int, key: tuple[str, tuple[int, ...]], losses: Mapping[int, float | None]
) -> None:
    values = {rank: loss for rank, loss in losses.items() if loss is not None and math.isfinite(loss)}
    if len(values) < max(2, len(losses)):
        return
    if not _is_uneven(values, SAME_LOSS):
        known.loss_was_equal[key] = step
    elif (apart := known.losses_apart.get(key)) is not None:
        apart.steps.append(step)
    else:
        known.losses_apart[key] = LossesApart(since=known.loss_was_equal.get(key), values=values, steps=[step])


def _is_uneven(values: Mapping[int, float], tolerance: float = HARMLESS) -> bool:
    low, high = min(values.values()), max(values.values())
    return high - low > tolerance * max(abs(low), abs(high))


def odd_ones(digests: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks that differ from what more than half of them have; () when there is no such majority."""
    usual, n = Counter(digests.values()).most_common(1)[0]
    return tuple(rank for rank, digest in digests.items() if digest != usual) if 2 * n > len(digests) else ()


def _data(panel: Panel, port: str, prefix: str) -> pa.Table:
    import pyarrow.compute as pc

    table = panel.where(phase="data")
    wanted = pc.and_(pc.equal(table["port"], port), pc.starts_with(table["site"], prefix))
    is_first = pc.equal(table["microbatch"], 0)  # the others are for comparing runs
    return table.filter(pc.and_(pc.and_(wanted, is_first), pc.is_valid(table["digest"])))
