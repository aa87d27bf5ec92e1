"""What a measure of health may ask of a recording: looks, norms of gradients, outputs of modules, what is trained."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.health_rows import HEALTH
from hypocenter.detect.local_rows import LOCAL, NORM
from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.gather import Mask
from hypocenter.record.reader import RecordedRun
from hypocenter.record.schema import readings_from


class Place(NamedTuple):
    """Of what values are: the n-th call there, on one rank."""

    rank: int
    site: str
    port: str
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Readings of one place, in order of steps."""

    place: Place
    rows: Sequence[Reading]

    @property
    def last(self) -> Reading:
        """The latest."""
        return self.rows[-1]

    @property
    def numbers(self) -> tuple[float, ...]:
        """Of the latest look, as hypocenter.detect.health_rows has them."""
        return self.last.summary.sketch or ()

    def points(self, index: int) -> list[tuple[int, float]]:
        """(step, number) of each look."""
        return [(row.step, (row.summary.sketch or ())[index]) for row in self.rows]


class Recorded:
    """A recording; everything is read when it is first asked for."""

    def __init__(self, recording: RecordedRun) -> None:
        self._recording = recording

    @cached_property
    def records(self) -> Sequence[tuple[int, StepRecord]]:
        """(rank, step record)."""
        return self._recording.step_records()

    @cached_property
    def n_steps(self) -> int:
        """Steps that were recorded."""
        return len({record.step for _, record in self.records})

    @property
    def has_looks(self) -> bool:
        """Whether it was recorded with --health, and a look was made."""
        return bool(self._looks)

    @property
    def has_outputs(self) -> bool:
        """Whether it was recorded at level modules."""
        return bool(self.outputs)

    @cached_property
    def _looks(self) -> dict[str, list[Series]]:
        """By port."""
        return _by_port(self._read(_is_look))

    def looks(self, port: str) -> Sequence[Series]:
        """Looks at one thing, by place in the order of the model."""
        return self._looks.get(port, ())

    @cached_property
    def outputs(self) -> Sequence[Series]:
        """What modules gave, the largest of each step, in the order of the model."""
        found = self._read(_is_output)
        return [series for port in _by_port(found).values() for series in port]

    @cached_property
    def gradients(self) -> Sequence[Series]:
        """Norms of parameters' gradients, as the root of `sumsq`."""
        found = self._read(_is_gradient)
        return _by_port(found).get("grad", ())

    @cached_property
    def local_gradients(self) -> Sequence[Series]:
        """Norms of each rank's own part, before the ranks' are averaged."""
        found = self._read(_is_local)
        return _by_port(found).get(LOCAL, ())

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

    def _read(self, where: Mask) -> list[tuple[int, Reading]]:
        needs = ("op", "phase", "port", "replay", "recompute", "call")
        found: list[tuple[int, Reading]] = []
        for rank, table in self._recording.scan(where, needs=needs):
            found += [(rank, row) for row in readings_from(table.drop_columns(["rank"]))]
        return found


def _is_look(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(batch["op"], HEALTH)


def _is_output(batch: pa.RecordBatch) -> pa.Array:
    is_output = pc.and_(pc.equal(batch["phase"], "forward"), pc.starts_with(batch["port"], "out"))
    return pc.and_(is_output, pc.invert(pc.or_(batch["replay"], batch["recompute"])))


def _is_gradient(batch: pa.RecordBatch) -> pa.Array:
    is_grad = pc.and_(pc.equal(batch["phase"], "grad"), pc.equal(batch["port"], "grad"))
    return pc.and_(is_grad, pc.invert(batch["replay"]))


def _is_local(batch: pa.RecordBatch) -> pa.Array:
    return pc.and_(pc.equal(batch["port"], LOCAL), pc.equal(batch["call"], NORM))


def _by_port(rows: Sequence[tuple[int, Reading]]) -> dict[str, list[Series]]:
    places: defaultdict[Place, dict[int, Reading]] = defaultdict(dict)
    for rank, row in sorted(rows, key=lambda pair: (pair[1].step, pair[1].order)):
        steps = places[Place(rank, row.site, row.port, row.call)]
        known = steps.get(row.step)
        if known is None or row.op == HEALTH or row.summary.absmax > known.summary.absmax:
            steps[row.step] = row
    found: defaultdict[str, list[Series]] = defaultdict(list)
    for place, steps in places.items():
        found[place.port].append(Series(place=place, rows=tuple(steps.values())))
    return dict(found)
