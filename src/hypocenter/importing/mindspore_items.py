"""What MindSpore dumped of one step: tensors by the run of an operator that had them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.importing.mindspore_graph import Node
from hypocenter.importing.mindspore_names import PARAMETER, FileName
from hypocenter.importing.mindspore_statistic import Row
from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.facts_file import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A dumped tensor: its file, or what statistic.csv has of it, or both."""

    name: FileName
    graph: int
    path: Path | None = None
    row: Row | None = None


@dataclass(slots=True, kw_only=True)
class Execution:
    """One run of an operator."""

    graph: int
    op_type: str
    name: str
    time_us: int
    items: dict[tuple[str, int], Item] = field(default_factory=dict)  # by input or output, and slot
    node: Node | None = None

    @property
    def inputs(self) -> list[Item]:
        """The inputs, by slot."""
        return [item for (io, _), item in sorted(self.items.items()) if io == "input"]

    @property
    def outputs(self) -> list[Item]:
        """The outputs, by slot."""
        return [item for (io, _), item in sorted(self.items.items()) if io == "output"]


def joined(files: Iterable[Item], rows: Iterable[Item]) -> list[Item]:
    """Return files, each with its row of statistics, and rows of which there is no file."""
    found: dict[tuple[int, str, str, str, int, int], Item] = {}
    loose: dict[tuple[int, str, str, str, int], tuple[int, str, str, str, int, int]] = {}
    for item in files:
        name = item.name
        key = (item.graph, name.op_type, name.name, name.io, name.slot, name.time_us)
        found[key] = item
        loose[key[:5]] = key
    for item in rows:
        name = item.name
        key = (item.graph, name.op_type, name.name, name.io, name.slot, name.time_us)
        of = key if key in found else loose.get(key[:5], key)
        known = found.get(of)
        if known is None or known.path is None:
            found[of] = item
        else:
            found[of] = Item(name=known.name, graph=known.graph, path=known.path, row=item.row)
    return list(found.values())


def executions(items: Iterable[Item]) -> tuple[list[Execution], list[Item]]:
    """Return runs of operators in the order in which they began, and the parameters beside them.

    An operator that ran again has the same name; its next run begins where an input or output of it comes again.
    """
    current: dict[tuple[int, str, str], Execution] = {}
    found: list[Execution] = []
    parameters: list[Item] = []
    for item in sorted(items, key=lambda i: (i.name.time_us, i.name.name, i.name.io, i.name.slot)):
        if item.name.op_type == PARAMETER:
            parameters.append(item)
            continue
        key, spot = (item.graph, item.name.op_type, item.name.name), (item.name.io, item.name.slot)
        run = current.get(key)
        if run is None or spot in run.items:
            run = current[key] = Execution(graph=item.graph, op_type=key[1], name=key[2], time_us=item.name.time_us)
            found.append(run)
        run.items[spot] = item
    return found, parameters


class Sink(Protocol):
    """Takes readings rank by rank, and for each rank in order of steps."""

    def problem(self, text: str) -> None:
        """Note something of the dump that is damaged or was left out."""
        ...

    def note(self, text: str) -> None:
        """Note something that the reader of the recording should know: what is not held, how a thing was taken."""
        ...

    def set_version(self, version: str, *, digest: str = "") -> None:
        """Set the version of the dump's format, and what its digests are."""
        ...

    def begin(self, rank: int, step: int) -> None:
        """Begin a step of a rank: what follows belongs to it."""
        ...

    def add(self, reading: Reading) -> None:
        """Add one reading of the current step."""
        ...

    def keep(self, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
        """Keep values of the current step, which lie in a file of the dump."""
        ...

    def end(self, record: StepRecord) -> None:
        """End the current step: it is complete."""
        ...

    def facts(self, rank: int, facts: Facts) -> None:
        """Set what the program of a rank is made of, as far as the dump tells."""
        ...
