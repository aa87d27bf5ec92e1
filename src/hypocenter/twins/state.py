"""What a step of training begins with, value by value: parameters, optimizer state, batch, rates, random states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from hypocenter.compare.comparison import is_of_update
from hypocenter.detect.bookkeeping import is_bookkeeping
from hypocenter.detect.replica_rows import BATCH_PORT, BATCH_PREFIX, FIELD_PORT, RNG_PORT, RNG_PREFIX
from hypocenter.nouns import Reading
from hypocenter.record.reader import RecordedRun
from hypocenter.record.schema import readings_from
from hypocenter.twins.answer import Restored

KINDS = ("parameters", "optimizer state", "batch", "learning rate", "loss scale", "random state")
"""In the order in which one explains the other."""
Prints = Mapping[str, Hashable]  # name of a value -> what tells equal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The values that one step begins with, by kind."""

    step: int
    kinds: Mapping[str, Prints]

    def of(self, kind: str) -> Prints:
        """Return the values of a kind; empty when none was seen."""
        return self.kinds.get(kind, {})


def are_empty(prints: Prints) -> bool:
    """Return whether tensors hold nothing but zeros: some optimizers make their state before the first update."""
    return all(isinstance(one, tuple) and one[1] == 0 and one[4] == 0 for one in prints.values())


def streams_used(run: RecordedRun, again: RecordedRun) -> frozenset[str]:
    """Return random states that the program draws from: they move from step to step, alike in both runs."""
    mine, other = (_streams(each) for each in (run, again))
    return frozenset(
        name
        for name, states in mine.items()
        if len(set(states.values())) > 1
        and all(state == states.get(step, state) for step, state in other.get(name, {}).items())
    )


def _streams(run: RecordedRun) -> dict[str, dict[int, Hashable]]:
    found: dict[str, dict[int, Hashable]] = {}
    for row in run.readings(site=f"{RNG_PREFIX}*", phase="data", rank=run.ranks[0]):
        found.setdefault(row.site, {})[row.step] = row.digest
    return found


def states_of(run: RecordedRun, streams: frozenset[str]) -> list[State]:
    """Return the states of all steps of the first rank, in rising order.

    Args:
        streams: random states that count.
    """
    rank = run.ranks[0]
    found: dict[int, dict[str, dict[str, Hashable]]] = {}
    for row in _rows(run, rank):
        kind = _kind(row)
        if kind and not row.replay and not row.recompute and (kind != "random state" or row.site in streams):
            name = f"{row.site} {row.port}" if kind == "optimizer state" else row.site
            name += f" of micro-batch {row.microbatch}" if kind == "batch" and row.microbatch else ""
            found.setdefault(row.step, {}).setdefault(kind, {}).setdefault(name, _print(row))
    for _, record in run.step_records():
        kinds = found.setdefault(record.step, {})
        for kind, value in (("learning rate", record.lr), ("loss scale", record.loss_scale)):
            if value is not None:
                kinds.setdefault(kind, {}).setdefault(kind, value)
    steps = sorted({record.step for r, record in run.step_records() if r == rank})
    return [State(step=step, kinds=found.get(step, {})) for step in steps]


def _rows(run: RecordedRun, rank: int) -> Iterator[Reading]:
    """Yield readings of what steps begin with, without what Hypocenter records for itself."""
    table = run.table(rank)
    table = table.filter(pc.field("phase").isin(["data", "param", "optimizer"]))
    is_random = pc.equal(table["port"], RNG_PORT)
    return readings_from(table.filter(pc.or_(pc.invert(is_bookkeeping(table)), is_random)))


def _kind(row: Reading) -> str:
    if row.phase == "data":
        if row.site.startswith(RNG_PREFIX) and row.port == RNG_PORT:
            return "random state"
        port = FIELD_PORT if "float" in row.dtype else BATCH_PORT  # the one that is there at every step
        return "batch" if row.site.startswith(BATCH_PREFIX) and row.port == port and row.digest is not None else ""
    if row.phase == "param":
        return "parameters"
    return "" if is_of_update(row.site) or row.site == "clip_coef" else "optimizer state"


def _print(row: Reading) -> Hashable:
    """Return what tells equal values: the digest of a batch or random state, the summary and sketch of a tensor."""
    if row.digest is not None:
        return row.digest
    one = row.summary
    return one.n, one.n_nan, one.min, one.max, one.absmax, one.sum, one.sumsq, one.sketch


def n_equal(mine: Prints, other: Prints) -> int:
    """Count the values of one that are in the other too, and equal."""
    return sum(name in other and other[name] == value for name, value in mine.items())


def steps_with(states: Sequence[State], kind: str, prints: Prints) -> list[int]:
    """Return the steps whose values of a kind are all equal to these."""
    return [one.step for one in states if prints and one.of(kind) == prints]


def restored(right: State, resumed: State, told: Callable[[str], str]) -> Iterator[Restored]:
    """Yield, kind by kind, how a resumed run's state agrees with that of the run that was not interrupted.

    Args:
        told: of a kind that differs, what more is known.
    """
    for kind in KINDS:
        mine, other = right.of(kind), resumed.of(kind)
        if not mine:
            if kind in ("parameters", "batch", "random state"):
                yield Restored(what=kind, verdict="not-seen")
            continue
        same = n_equal(mine, other)
        names = [name for name, value in mine.items() if other.get(name) != value]
        verdict = "equal" if not names else "missing" if not other else "differs"
        yield Restored(
            what=kind,
            verdict=verdict,
            n=len(mine),
            n_equal=same,
            first=names[0] if names else "",
            said=told(kind) if names else "",
        )
